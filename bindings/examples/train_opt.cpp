/* SPDX-License-Identifier: Apache-2.0 */
/* train_opt.cpp - a C++ trainer in the form of ggml-opt: tensors with `ne`, a function that gives the numbers of a
 * step, a context that makes the step once gradients are there. It pulls a matrix towards another one, by the plugin
 * and by an AdamW of its own, and compares them. */
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "zf_trainer.h"

struct tensor {
    const char *name;
    std::vector<int64_t> ne; // elements of each axis, the fastest first
    std::vector<float> data, grad;
};

struct opt_params { // of AdamW, at one step
    float alpha, beta1, beta2, eps, wd;
};
using get_params = opt_params (*)(int step);

class opt_context { // in place of ggml's step of AdamW and of its moments
    zf_trainer_t *zf = zf_trainer_new(nullptr, nullptr, 0);
    get_params params;

  public:
    opt_context(std::vector<tensor> &model, get_params get) : params(get) {
        const opt_params p = get(1);
        zf_trainer_adamw(zf, p.beta1, p.beta2, p.eps, p.wd);
        for (tensor &t : model) {
            const std::vector<int64_t> shape(t.ne.rbegin(), t.ne.rend()); // row-major: the slowest axis first
            zf_trainer_add(zf, t.name, t.data.data(), t.grad.data(), int32_t(shape.size()), shape.data(), 0);
        }
        zf_trainer_bind(zf); // its error comes again at the first step
    }
    opt_context(const opt_context &) = delete;
    ~opt_context() { zf_trainer_flush(zf), zf_trainer_free(zf); }
    void step(int number) {
        if (zf_trainer_step(zf, params(number).alpha) < 0)
            throw std::runtime_error(zf_trainer_error(zf));
    }
};

constexpr int N = 32, N_STEPS = 600;

static opt_params params_of(int step) { return {0.02f * float(N_STEPS - step) / N_STEPS, 0.9f, 0.999f, 1e-8f, 0.0f}; }

/* Half the squared distance to the target; its gradient goes to grad. */
static float backward(tensor &w) {
    float loss = 0.0f;
    for (size_t i = 0; i < w.data.size(); i++) {
        w.grad[i] = w.data[i] - 0.02f * float(int(i / N) - int(i % N));
        loss += 0.5f * w.grad[i] * w.grad[i];
    }
    return loss;
}

static void adamw(tensor &w, std::vector<double> &m, std::vector<double> &v, const opt_params &p, int step) {
    for (size_t i = 0; i < w.data.size(); i++) {
        m[i] += (1 - p.beta1) * (w.grad[i] - m[i]);
        v[i] += (1 - p.beta2) * (w.grad[i] * w.grad[i] - v[i]);
        const double root = std::sqrt(v[i] / (1 - std::pow(p.beta2, step)));
        w.data[i] -= float(p.alpha * m[i] / (1 - std::pow(p.beta1, step)) / (root + p.eps));
    }
}

int main() try {
    const tensor zeros = {"w", {N, N}, std::vector<float>(N * N), std::vector<float>(N * N)};
    std::vector<tensor> ours = {zeros}, theirs = {zeros};
    std::vector<double> m(N * N), v(N * N);
    float loss = 0.0f, apart = 0.0f;
    opt_context opt(ours, params_of);
    for (int step = 1; step <= N_STEPS; step++) {
        loss = backward(ours[0]), backward(theirs[0]);
        opt.step(step);
        adamw(theirs[0], m, v, params_of(step), step);
        for (size_t i = 0; i < N * N; i++)
            apart = std::fmax(apart, std::fabs(ours[0].data[i] - theirs[0].data[i]));
    }
    std::printf("at the end loss %.2f, never more than %.0e from AdamW's weights\n", loss, apart);
    return loss < 0.01f && apart < 1e-5f ? 0 : 1;
} catch (const std::exception &problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
}
