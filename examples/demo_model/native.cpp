// The two parts of the forward that PyTorch alone runs or compiles slowly, with their gradients, in float32.
//
// First the KDA recurrence, one thread per (sequence, head). Per token, with state S [D, D] (rows: key channels, columns: value channels):
//   S = decay * S;  m = S^T k;  e = v - m;  S = S + k (beta e)^T;  o = S^T q
// Layout of q, k, v, decay, out and their gradients: [B, T, H, D]; beta: [B, T, H]; states: [B, H, D, D].
#include <cstdint>
#include <cstring>
#include <vector>

constexpr int D = 32;
constexpr int CHUNK = 32;  // the backward pass keeps one state per CHUNK tokens and recomputes the others

static inline void step(float* __restrict S, const float* q, const float* k, const float* v, const float* decay,
                        float beta, float* __restrict error, float* __restrict out) {
    float m[D] = {0};
    for (int i = 0; i < D; ++i)
        for (int j = 0; j < D; ++j) {
            S[i * D + j] *= decay[i];
            m[j] += S[i * D + j] * k[i];
        }
    for (int j = 0; j < D; ++j) error[j] = v[j] - m[j];
    float o[D] = {0};
    for (int i = 0; i < D; ++i)
        for (int j = 0; j < D; ++j) {
            S[i * D + j] += k[i] * beta * error[j];
            o[j] += S[i * D + j] * q[i];
        }
    if (out) std::memcpy(out, o, sizeof(o));
}

// checkpoints (may be null): [B, H, ceil(T / CHUNK), D, D], the state before each chunk. `state` is updated in place.
extern "C" void kda_forward(const float* q, const float* k, const float* v, const float* decay, const float* beta,
                            float* out, float* state, float* checkpoints, int64_t B, int64_t T, int64_t H) {
    const int64_t chunks = (T + CHUNK - 1) / CHUNK;
#pragma omp parallel for schedule(static)
    for (int64_t bh = 0; bh < B * H; ++bh) {
        const int64_t b = bh / H, h = bh % H;
        float* S = state + bh * D * D;
        float error[D];
        for (int64_t t = 0; t < T; ++t) {
            if (checkpoints && t % CHUNK == 0)
                std::memcpy(checkpoints + (bh * chunks + t / CHUNK) * D * D, S, sizeof(float) * D * D);
            const int64_t row = (b * T + t) * H + h, at = row * D;
            step(S, q + at, k + at, v + at, decay + at, beta[row], error, out + at);
        }
    }
}

extern "C" void kda_backward(const float* q, const float* k, const float* v, const float* decay, const float* beta,
                             const float* checkpoints, const float* dout, float* dq, float* dk, float* dv,
                             float* ddecay, float* dbeta, int64_t B, int64_t T, int64_t H) {
    const int64_t chunks = (T + CHUNK - 1) / CHUNK;
#pragma omp parallel for schedule(static)
    for (int64_t bh = 0; bh < B * H; ++bh) {
        const int64_t b = bh / H, h = bh % H;
        std::vector<float> states((CHUNK + 1) * D * D), errors(CHUNK * D), dS(D * D, 0.f);
        for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
            const int64_t begin = chunk * CHUNK, end = begin + CHUNK < T ? begin + CHUNK : T;
            std::memcpy(states.data(), checkpoints + (bh * chunks + chunk) * D * D, sizeof(float) * D * D);
            for (int64_t t = begin; t < end; ++t) {
                const int64_t row = (b * T + t) * H + h, at = row * D, local = t - begin;
                float* S = states.data() + (local + 1) * D * D;
                std::memcpy(S, S - D * D, sizeof(float) * D * D);
                step(S, q + at, k + at, v + at, decay + at, beta[row], errors.data() + local * D, nullptr);
            }
            for (int64_t t = end - 1; t >= begin; --t) {
                const int64_t row = (b * T + t) * H + h, at = row * D, local = t - begin;
                const float *before = states.data() + local * D * D, *after = before + D * D;
                const float *error = errors.data() + local * D, *g = dout + at;
                float dd[D] = {0};
                for (int i = 0; i < D; ++i) {
                    float dq_i = 0, dk_i = 0;
                    for (int j = 0; j < D; ++j) {
                        dS[i * D + j] += q[at + i] * g[j];
                        dq_i += after[i * D + j] * g[j];
                        dk_i += dS[i * D + j] * error[j];
                        dd[j] += dS[i * D + j] * k[at + i];
                    }
                    dq[at + i] = dq_i;
                    dk[at + i] = dk_i * beta[row];
                }
                float db = 0;
                for (int j = 0; j < D; ++j) {
                    db += dd[j] * error[j];
                    dd[j] *= beta[row];
                    dv[at + j] = dd[j];
                }
                dbeta[row] = db;
                for (int i = 0; i < D; ++i) {
                    float dk_i = 0, ddecay_i = 0;
                    for (int j = 0; j < D; ++j) {
                        dk_i -= before[i * D + j] * dd[j];
                        dS[i * D + j] -= k[at + i] * dd[j];
                        ddecay_i += dS[i * D + j] * before[i * D + j];
                        dS[i * D + j] *= decay[at + i];
                    }
                    dk[at + i] += dk_i * decay[at + i];
                    ddecay[at + i] = ddecay_i;
                }
            }
        }
    }
}

// Sinkhorn on one 2x2 matrix per row, in place of a chain of scalars that Inductor takes minutes to compile.
// x, y: [rows, 4] as (c00, c01, c10, c11), all positive. Columns are normalised first; `iterations` column passes.
static inline void normalise(const float* x, float* y, float eps, bool columns) {
    const int step = columns ? 2 : 1, across = columns ? 1 : 2;
    for (int line = 0; line < 2; ++line) {
        const float *a = x + line * across, inverse = 1.f / (a[0] + a[step] + eps);
        y[line * across] = a[0] * inverse;
        y[line * across + step] = a[step] * inverse;
    }
}

static inline void normalise_backward(const float* x, const float* dy, float* dx, float eps, bool columns) {
    const int step = columns ? 2 : 1, across = columns ? 1 : 2;
    for (int line = 0; line < 2; ++line) {
        const float *a = x + line * across, *g = dy + line * across, inverse = 1.f / (a[0] + a[step] + eps);
        const float shared = (g[0] * a[0] + g[step] * a[step]) * inverse * inverse;
        dx[line * across] = g[0] * inverse - shared;
        dx[line * across + step] = g[step] * inverse - shared;
    }
}

extern "C" void sinkhorn_forward(const float* x, float* y, float eps, int64_t iterations, int64_t rows) {
    for (int64_t row = 0; row < rows; ++row) {
        float from[4], to[4];
        std::memcpy(from, x + row * 4, sizeof(from));
        for (int64_t pass = 0; pass < 2 * iterations - 1; ++pass) {
            normalise(from, to, eps, pass % 2 == 0);
            std::memcpy(from, to, sizeof(from));
        }
        std::memcpy(y + row * 4, from, sizeof(from));
    }
}

extern "C" void sinkhorn_backward(const float* x, const float* dy, float* dx, float eps, int64_t iterations,
                                  int64_t rows) {
    const int64_t passes = 2 * iterations - 1;
    std::vector<float> kept(4 * passes);
    for (int64_t row = 0; row < rows; ++row) {
        float last[4], grad[4], next[4];
        std::memcpy(kept.data(), x + row * 4, sizeof(last));
        for (int64_t pass = 0; pass < passes; ++pass)
            normalise(kept.data() + 4 * pass, pass + 1 < passes ? kept.data() + 4 * (pass + 1) : last, eps,
                      pass % 2 == 0);
        std::memcpy(grad, dy + row * 4, sizeof(grad));
        for (int64_t pass = passes - 1; pass >= 0; --pass) {
            normalise_backward(kept.data() + 4 * pass, grad, next, eps, pass % 2 == 0);
            std::memcpy(grad, next, sizeof(grad));
        }
        std::memcpy(dx + row * 4, grad, sizeof(grad));
    }
}
