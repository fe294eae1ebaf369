// Runs a compiled step several times in one call: what a draft leaves behind is copied into what the next one takes.
//
// A step is a library that Inductor made, opened here and called through its C interface. Its arguments are of two
// kinds: bound ones (caches, weights) lie in memory that the caller owns, staged ones (token, hidden, lengths) in memory
// of the program, filled from the caller's at the start of a run and from the step's own results between two steps.
// Every function returns 0, or 1 with a message in draft_error().
//
// Only torch's C interface is used, so building this takes a second and links to nothing but libtorch_cpu.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_runtime/interface.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

thread_local std::string last_error;

int fail(const std::string& message) {
  last_error = message;
  return 1;
}

struct Port {
  int32_t dtype = 0;
  std::vector<int64_t> sizes, strides;
  std::vector<char> staged;      // empty where the caller's memory is bound
  AtenTensorHandle tensor = nullptr;
  int64_t fed_by = -1;           // the result that fills it between two steps
  bool is_first_flag = false;    // true in the first step, false in the others
};

struct Program {
  void* library = nullptr;
  AOTInductorModelContainerHandle container = nullptr;
  decltype(&AOTInductorModelContainerRun) run = nullptr;
  decltype(&AOTInductorModelContainerDelete) remove = nullptr;
  const char* (*library_error)() = nullptr;
  std::vector<Port> ports;
  size_t num_results = 0;

  ~Program() {
    for (Port& port : ports)
      if (port.tensor != nullptr) aoti_torch_delete_tensor_object(port.tensor);
    if (container != nullptr) remove(container);
    if (library != nullptr) dlclose(library);
  }

  std::string reason(const char* what) const {
    const char* text = library_error == nullptr ? nullptr : library_error();
    return std::string(what) + (text == nullptr || *text == 0 ? ": see standard error" : std::string(": ") + text);
  }
};

size_t bytes_of(int32_t dtype, const std::vector<int64_t>& sizes) {
  size_t bytes = dtype == aoti_torch_dtype_int64() ? 8
      : dtype == aoti_torch_dtype_float32() || dtype == aoti_torch_dtype_int32() ? 4
      : dtype == aoti_torch_dtype_bool() ? 1 : 2;
  for (int64_t size : sizes) bytes *= static_cast<size_t>(size);
  return bytes;
}

int32_t dtype_code(const std::string& name) {
  if (name == "f32") return aoti_torch_dtype_float32();
  if (name == "bf16") return aoti_torch_dtype_bfloat16();
  if (name == "f16") return aoti_torch_dtype_float16();
  if (name == "i32") return aoti_torch_dtype_int32();
  if (name == "i64") return aoti_torch_dtype_int64();
  if (name == "bool") return aoti_torch_dtype_bool();
  return -1;
}

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The results of one step, freed whatever happens.
struct Results {
  std::vector<AtenTensorHandle> tensors;
  explicit Results(size_t count) : tensors(count, nullptr) {}
  ~Results() {
    for (AtenTensorHandle tensor : tensors)
      if (tensor != nullptr) aoti_torch_delete_tensor_object(tensor);
  }
};

// Copy a result to `target`; it must be whole, in order, and of so many bytes.
bool copy_result(AtenTensorHandle tensor, void* target, size_t bytes) {
  bool is_contiguous = false;
  int64_t numel = 0;
  int32_t dtype = 0;
  void* data = nullptr;
  if (aoti_torch_is_contiguous(tensor, &is_contiguous) || aoti_torch_get_numel(tensor, &numel) ||
      aoti_torch_get_dtype(tensor, &dtype) || aoti_torch_get_data_ptr(tensor, &data))
    return false;
  if (!is_contiguous || bytes_of(dtype, {numel}) != bytes) return false;
  std::memcpy(target, data, bytes);
  return true;
}

}  // namespace

extern "C" {

const char* draft_error() { return last_error.c_str(); }

// Open a step of `num_ports` arguments and `num_results` results.
int draft_open(const char* path, int64_t num_ports, int64_t num_results, Program** opened) {
  auto program = std::make_unique<Program>();
  program->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (program->library == nullptr) return fail(dlerror());
  decltype(&AOTInductorModelContainerCreateWithDevice) create;
  decltype(&AOTInductorModelContainerGetNumConstants) count_constants;
  decltype(&AOTInductorModelContainerGetNumInputs) count_inputs;
  decltype(&AOTInductorModelContainerGetNumOutputs) count_outputs;
  void* library = program->library;
  if (!find(library, "AOTInductorModelContainerCreateWithDevice", create) ||
      !find(library, "AOTInductorModelContainerGetNumConstants", count_constants) ||
      !find(library, "AOTInductorModelContainerGetNumInputs", count_inputs) ||
      !find(library, "AOTInductorModelContainerGetNumOutputs", count_outputs) ||
      !find(library, "AOTInductorModelContainerRun", program->run) ||
      !find(library, "AOTInductorModelContainerDelete", program->remove))
    return fail("not a compiled step: it lacks Inductor's interface");
  find(library, "AOTInductorGetLastError", program->library_error);  // newer versions of torch have it
  if (create(&program->container, 1, "cpu", nullptr)) return fail(program->reason("cannot be set up"));
  size_t constants = 0, inputs = 0, outputs = 0;
  if (count_constants(program->container, &constants) || count_inputs(program->container, &inputs) ||
      count_outputs(program->container, &outputs))
    return fail(program->reason("cannot be asked for its arguments"));
  // one that is called without its constants takes the process down
  if (constants != 0) return fail("it holds " + std::to_string(constants) + " constants; a step takes all as arguments");
  if (inputs != static_cast<size_t>(num_ports) || outputs != static_cast<size_t>(num_results))
    return fail("it takes " + std::to_string(inputs) + " arguments and makes " + std::to_string(outputs) +
                " results, expected " + std::to_string(num_ports) + " and " + std::to_string(num_results));
  program->ports.resize(inputs);
  program->num_results = outputs;
  *opened = program.release();
  return 0;
}

void draft_close(Program* program) { delete program; }

// Declare an argument: staged where `data` is null, else bound to that memory, which must outlive the program or be
// bound anew. `fed_by` is the result that fills it between steps, -1 for none.
int draft_bind(Program* program, int64_t index, void* data, const char* dtype, int64_t ndim, const int64_t* sizes,
               int64_t fed_by, bool is_first_flag) {
  Port& port = program->ports.at(static_cast<size_t>(index));
  port.dtype = dtype_code(dtype);
  if (port.dtype < 0) return fail(std::string("unknown dtype ") + dtype);
  port.sizes.assign(sizes, sizes + ndim);
  port.strides.assign(static_cast<size_t>(ndim), 1);
  for (int64_t axis = ndim - 2; axis >= 0; --axis)
    port.strides[static_cast<size_t>(axis)] =
        port.strides[static_cast<size_t>(axis + 1)] * port.sizes[static_cast<size_t>(axis + 1)];
  port.fed_by = fed_by;
  port.is_first_flag = is_first_flag;
  if (data == nullptr) {
    port.staged.assign(bytes_of(port.dtype, port.sizes) + 1, 0);
    data = port.staged.data();
  }
  AtenTensorHandle made = nullptr;
  if (aoti_torch_create_tensor_from_blob(data, ndim, port.sizes.data(), port.strides.data(), 0, port.dtype,
                                         aoti_torch_device_type_cpu(), 0, &made))
    return fail("torch cannot take the memory of argument " + std::to_string(index));
  if (port.tensor != nullptr) aoti_torch_delete_tensor_object(port.tensor);
  port.tensor = made;
  return 0;
}

// Run `num_steps` steps. `sources` holds per argument the caller's memory of a staged one, or null to leave it be;
// `targets` per result where step i's is written, at i times its bytes, or null; `bytes` the bytes of each result.
int draft_run(Program* program, int64_t num_steps, void* const* sources, void* const* targets, const int64_t* bytes) {
  std::vector<Port>& ports = program->ports;
  for (size_t index = 0; index < ports.size(); ++index) {
    Port& port = ports[index];
    if (port.tensor == nullptr) return fail("argument " + std::to_string(index) + " is not bound");
    if (sources[index] != nullptr && !port.staged.empty())
      std::memcpy(port.staged.data(), sources[index], port.staged.size() - 1);
  }
  std::vector<AtenTensorHandle> arguments(ports.size());
  for (int64_t step = 0; step < num_steps; ++step) {
    for (size_t index = 0; index < ports.size(); ++index) {
      Port& port = ports[index];
      if (port.is_first_flag) std::memset(port.staged.data(), step == 0, port.staged.size() - 1);
      // a handle is given away with each call, the memory behind it is not
      if (aoti_torch_new_tensor_handle(port.tensor, &arguments[index])) return fail("torch has no memory for a handle");
    }
    Results results(program->num_results);
    if (program->run(program->container, arguments.data(), arguments.size(), results.tensors.data(),
                     results.tensors.size(), nullptr, nullptr))
      return fail(program->reason("step failed"));
    for (size_t index = 0; index < results.tensors.size(); ++index)
      if (targets[index] != nullptr &&
          !copy_result(results.tensors[index], static_cast<char*>(targets[index]) + step * bytes[index],
                       static_cast<size_t>(bytes[index])))
        return fail("result " + std::to_string(index) + " is not laid out as declared");
    if (step + 1 == num_steps) break;
    for (Port& port : ports)
      if (port.fed_by >= 0 && !copy_result(results.tensors[static_cast<size_t>(port.fed_by)], port.staged.data(),
                                           port.staged.size() - 1))
        return fail("result " + std::to_string(port.fed_by) + " does not fit the argument that it feeds");
  }
  return 0;
}
}
