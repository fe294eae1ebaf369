// Products of up to 16 rows of bf16 with a weight, by AVX512-BF16: each weight line is read once and multiplied with
// all rows that want it, two products and their sum an instruction.
//
// A result is one sum in float32 over 16 lanes, in steps of 32 inputs, its lanes then added in a fixed tree and rounded
// once. Nothing of that depends on the rows, lines or threads beside it, so a row has the same bits in any company. As
// the instruction does, subnormal numbers count as zero; NaN and infinities pass.
//
// Goes into every package that calls it, with DRAFT_NUM_THREADS defined before it.
#include <immintrin.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kLines = 4;            // weight lines at a time: what fits the registers beside the rows
constexpr int64_t kRows = 6;             // rows at a time; more take turns over lines that then lie in the first cache
constexpr int64_t kStep = 32;            // inputs an instruction takes
constexpr int64_t kLinesOfThread = 32;   // lines are dealt in such parts: threads then never write one cache line
constexpr int64_t kBytesOfThread = 256 << 10;  // of weights; below it a second thread costs more than it saves

// The rows that meet one weight: where their results go, and their inputs packed: per part of at most kRows rows, per
// step, each row's kStep inputs, zeros after the last.
struct Meeting {
  const uint16_t* weight;
  std::vector<uint16_t*> results;
  std::vector<int64_t> part_ends;
  std::vector<uint16_t> packed;
};

void pack(Meeting& meeting, const std::vector<const uint16_t*>& rows, int64_t inputs) {
  const int64_t steps = (inputs + kStep - 1) / kStep, count = static_cast<int64_t>(rows.size());
  const int64_t parts = (count + kRows - 1) / kRows;
  meeting.part_ends.clear();
  meeting.packed.assign(static_cast<size_t>(count * steps * kStep), 0);
  uint16_t* to = meeting.packed.data();
  for (int64_t part = 0, first = 0; part < parts; ++part) {
    // split evenly, so that no part has too few sums for the processor to work on side by side
    const int64_t end = count * (part + 1) / parts;
    for (int64_t step = 0; step < steps; ++step)
      for (int64_t row = first; row < end; ++row, to += kStep)
        std::memcpy(to, rows[static_cast<size_t>(row)] + step * kStep,
                    sizeof(uint16_t) * static_cast<size_t>(std::min(kStep, inputs - step * kStep)));
    meeting.part_ends.push_back(first = end);
  }
}

// The four sums of the lanes of four registers.
inline __m128 sums_of_lanes(const __m512* sum) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(sum[0], sum[1], 0x44), _mm512_shuffle_f32x4(sum[0], sum[1], 0xEE));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(sum[2], sum[3], 0x44), _mm512_shuffle_f32x4(sum[2], sum[3], 0xEE));
  __m512 all = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4E));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xB1));
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, all));
}

// Add one step of ROWS packed rows times four lines, of which `held` inputs are read. What lies `ahead` is asked for in
// the order of memory, in which four lines side by side are not read: 8 rows of 16384 x 2048 take 4.1 ms, not 6.3, one
// row 2.9, not 3.6; in a cache one row of 2048 x 2048 takes 117 us, not 104 (one thread, taking turns, EPYC of Zen 4).
template <int ROWS>
inline __attribute__((always_inline)) void add_step(__m512 (&sum)[ROWS][kLines], const uint16_t* rows,
                                                    const uint16_t* const* lines, int64_t input, __mmask32 held,
                                                    const uint16_t* ahead) {
  __m512bh weight[kLines];
#pragma GCC unroll 4
  for (int line = 0; line < kLines; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(ahead + kLines * input + line * kStep), _MM_HINT_T1);
#pragma GCC unroll 4
  for (int line = 0; line < kLines; ++line)
    weight[line] = (__m512bh)_mm512_maskz_loadu_epi16(held, lines[line] + input);
#pragma GCC unroll 8
  for (int row = 0; row < ROWS; ++row) {
    const __m512bh x = (__m512bh)_mm512_loadu_si512(rows + input * ROWS + row * kStep);
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line) sum[row][line] = _mm512_dpbf16_ps(sum[row][line], weight[line], x);
  }
}

// ROWS packed rows times four lines; the first `count` of their results are written to each row from `first` on.
template <int ROWS>
void multiply(const uint16_t* rows, const uint16_t* const* from, int64_t inputs, uint16_t* const* results,
              int64_t first, int64_t count) {
  const uint16_t* const lines[kLines] = {from[0], from[1], from[2], from[3]};
  __m512 sum[ROWS][kLines];
#pragma GCC unroll 8
  for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line) sum[row][line] = _mm512_setzero_ps();
  const uint16_t* const ahead = lines[0] + 2 * kLines * inputs;  // may lie past the end: asking is harmless
  int64_t input = 0;
  for (; input + kStep <= inputs; input += kStep) add_step<ROWS>(sum, rows, lines, input, 0xFFFFFFFFu, ahead);
  if (input < inputs) add_step<ROWS>(sum, rows, lines, input, (1u << (inputs - input)) - 1u, ahead);
#pragma GCC unroll 8
  for (int row = 0; row < ROWS; ++row) {
    const __m128i rounded = (__m128i)_mm_cvtneps_pbh(sums_of_lanes(sum[row]));
    if (count == kLines)  // a size known here is one instruction
      std::memcpy(results[row] + first, &rounded, sizeof(uint16_t) * kLines);
    else
      std::memcpy(results[row] + first, &rounded, sizeof(uint16_t) * static_cast<size_t>(count));
  }
}

using Multiply = decltype(&multiply<1>);
constexpr Multiply kMultiply[kRows] = {multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>};

// Lines [first, end) of a meeting's weight of `outputs` lines.
void multiply_lines(const Meeting& meeting, int64_t inputs, int64_t outputs, int64_t first, int64_t end) {
  const int64_t padded = (inputs + kStep - 1) / kStep * kStep;
  for (int64_t line = first; line < end; line += kLines) {
    const uint16_t* lines[kLines];
    // past the last line it is multiplied again, and that result not kept
    for (int64_t number = 0; number < kLines; ++number)
      lines[number] = meeting.weight + std::min(line + number, outputs - 1) * inputs;
    int64_t row = 0;
    for (int64_t part_end : meeting.part_ends) {
      kMultiply[part_end - row - 1](meeting.packed.data() + row * padded, lines, inputs, meeting.results.data() + row,
                                    line, std::min(kLines, outputs - line));
      row = part_end;
    }
  }
}

// All lines of `count` meetings, in even shares.
void multiply_all(const Meeting* meetings, int64_t count, int64_t inputs, int64_t outputs, int64_t max_threads) {
  const int64_t parts = (outputs + kLinesOfThread - 1) / kLinesOfThread;
  const int64_t total = parts * count;
  const int64_t bytes = total * kLinesOfThread * inputs * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t threads = std::max<int64_t>(1, std::min(max_threads, bytes / kBytesOfThread));
  const auto share = [&](int64_t thread) {
    for (int64_t at = total * thread / threads, end = total * (thread + 1) / threads; at < end;) {
      const int64_t part = at % parts, stop = std::min(parts, part + end - at);
      multiply_lines(meetings[at / parts], inputs, outputs, part * kLinesOfThread,
                     std::min(outputs, stop * kLinesOfThread));
      at += stop - part;
    }
  };
  if (threads == 1) return share(0);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int64_t thread = 0; thread < threads; ++thread) share(thread);
}

}  // namespace

extern "C" {

// results [pairs, outputs] = x [rows, inputs] times weights [experts, outputs, inputs]: pair p is row p * rows / pairs
// of x through weight expert[p], or through the only one where `expert` is null. A weight is read once for all pairs.
int32_t draft_bf16_products(uint16_t* results, const uint16_t* x, const int64_t* expert, const uint16_t* weights,
                            int64_t pairs, int64_t rows, int64_t outputs, int64_t inputs, int64_t experts,
                            int64_t max_threads) {
  try {
    // their memory serves the next call
    static thread_local std::vector<Meeting> meetings;
    static thread_local std::vector<int64_t> order;
    static thread_local std::vector<const uint16_t*> rows_of;
    const auto expert_of = [&](int64_t pair) { return expert == nullptr ? 0 : expert[pair]; };
    order.resize(static_cast<size_t>(pairs));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return std::pair(expert_of(a), a) < std::pair(expert_of(b), b); });
    size_t used = 0;
    for (auto pair = order.begin(); pair != order.end();) {
      const int64_t number = expert_of(*pair);
      if (number < 0 || number >= experts) return 1;
      if (meetings.size() == used) meetings.emplace_back();
      Meeting& meeting = meetings[used++];
      meeting.weight = weights + number * outputs * inputs;
      meeting.results.clear();
      rows_of.clear();
      for (; pair != order.end() && expert_of(*pair) == number; ++pair) {
        meeting.results.push_back(results + *pair * outputs);
        rows_of.push_back(x + *pair * rows / pairs * inputs);
      }
      pack(meeting, rows_of, inputs);
    }
    multiply_all(meetings.data(), static_cast<int64_t>(used), inputs, outputs, max_threads);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

#ifdef DRAFT_NUM_THREADS
// What a package calls, with tensors that lie whole and in order.
int32_t aoti_torch_cpu_draft_bf16_expert_product(AtenTensorHandle results, AtenTensorHandle x, AtenTensorHandle expert,
                                                 AtenTensorHandle weights) {
  void *to = nullptr, *from = nullptr, *ids = nullptr, *lines = nullptr;
  int64_t *pairs = nullptr, *rows = nullptr, *sizes = nullptr;
  if (aoti_torch_get_data_ptr(results, &to) || aoti_torch_get_data_ptr(x, &from) ||
      aoti_torch_get_data_ptr(weights, &lines) || aoti_torch_get_sizes(results, &pairs) ||
      aoti_torch_get_sizes(x, &rows) || aoti_torch_get_sizes(weights, &sizes) ||
      (expert != nullptr && aoti_torch_get_data_ptr(expert, &ids)))
    return 1;
  const int64_t* of_one = expert == nullptr ? sizes : sizes + 1;
  return draft_bf16_products(static_cast<uint16_t*>(to), static_cast<const uint16_t*>(from),
                             static_cast<const int64_t*>(ids), static_cast<const uint16_t*>(lines), pairs[0], rows[0],
                             of_one[0], of_one[1], expert == nullptr ? 1 : sizes[0], DRAFT_NUM_THREADS);
}

int32_t aoti_torch_cpu_draft_bf16_product(AtenTensorHandle results, AtenTensorHandle x, AtenTensorHandle weight) {
  return aoti_torch_cpu_draft_bf16_expert_product(results, x, nullptr, weight);
}
#endif
}
