/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_cuda.c - the reference host on a CUDA device beside the processor: calls of compute.h, then whole passes.
 *
 * What the kernels promise to be the processor's bits is compared as bits; sums along a row or an inner dimension,
 * which are added in another order, within a few units in the last place of their largest term. Runs on the test
 * double, and on a GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/cuda/device.h"
#include "suite.h"
#include "tiny_model.h"

enum { ROWS = 23, WIDTH = 37, N = ROWS * WIDTH, TABLE_ROWS = 11 };

enum { HERE, THERE /* on the processor, on the device */, MOST_TWINS = 12 };
static host_compute_t *both[2];

static host_compute_t *open_device(int is_bf16) {
    glue_error_t err = {""};
    host_compute_t *out;
    ck_assert_msg(host_cuda_open(0, is_bf16, &out, &err) == 0, "%s", err.text);
    return out;
}

/* ---- one array in both places ------------------------------------------------------------------------------------ */

typedef struct twin {
    size_t n;
    float *at[2];
} twin_t;

static twin_t twins[MOST_TWINS];
static uint32_t n_twins;

static twin_t twin(size_t n, double scale) {
    host_compute_t *device = both[THERE];
    twin_t t = {n, {malloc(n * sizeof(float)), device->ops->allocate(device, n * sizeof(float))}};
    ck_assert_ptr_nonnull(t.at[THERE]);
    for (size_t i = 0; i < n; i++)
        t.at[HERE][i] = (float)(scale * glue_rng_normal(glue_rng(11, n_twins + 1), i));
    device->ops->copy_in(device, t.at[THERE], t.at[HERE], n * sizeof(float));
    ck_assert_uint_lt(n_twins, MOST_TWINS);
    return twins[n_twins++] = t;
}

static void drop_twins(void) {
    for (; n_twins > 0; n_twins--) {
        both[THERE]->ops->release(both[THERE], twins[n_twins - 1].at[THERE]);
        free(twins[n_twins - 1].at[HERE]);
    }
}

/* Relative to the largest element: what is summed has about that size. 0: the same bits. */
static void expect(twin_t t, double tolerance, const char *what) {
    float *found = malloc(t.n * sizeof *found);
    double largest = 1e-30;
    both[THERE]->ops->copy_out(both[THERE], found, t.at[THERE], t.n * sizeof(float));
    for (size_t i = 0; i < t.n; i++)
        largest = fmax(largest, fabs((double)t.at[HERE][i]));
    for (size_t i = 0; i < t.n; i++) {
        const float *wanted = &t.at[HERE][i];
        ck_assert_msg(tolerance > 0 ? fabs((double)*wanted - (double)found[i]) <= tolerance * largest
                                    : memcmp(wanted, &found[i], sizeof(float)) == 0,
                      "%s: element %zu is %.9g; %.9g is right", what, i, (double)found[i], (double)*wanted);
    }
    free(found);
}

static void setup(void) {
    both[HERE] = host_compute_processor();
    both[THERE] = open_device(0);
}

static void teardown(void) {
    glue_error_t err = {""};
    drop_twins();
    ck_assert_msg(host_compute_check(both[THERE], &err) == 0, "%s", err.text);
    host_compute_close(both[THERE]);
}

/* ---- rows, columns, elements ------------------------------------------------------------------------------------- */

ZT_TEST(test_rows) {
    twin_t y = twin(N, 1.0), row = twin(WIDTH, 1.0), x = twin(N, 1.0), sum = twin(WIDTH, 1.0);
    for (int p = 0; p < 2; p++) {
        both[p]->ops->fill_rows(both[p], y.at[p], row.at[p], ROWS, WIDTH);
        both[p]->ops->add(both[p], y.at[p], x.at[p], N);
        both[p]->ops->sum_rows(both[p], x.at[p], ROWS, WIDTH, sum.at[p]);
    }
    expect(y, 0, "fill_rows and add");
    expect(sum, 0, "sum_rows");
}

ZT_TEST(test_chosen) {
    twin_t table = twin(TABLE_ROWS * WIDTH, 1.0), x = twin(N, 1.0), taken = twin(N, 1.0);
    uint16_t narrow[TABLE_ROWS * WIDTH];
    int32_t rows[ROWS];
    void *bf16[] = {narrow, both[THERE]->ops->allocate(both[THERE], sizeof narrow)};
    for (int i = 0; i < ROWS; i++)
        rows[i] = (int32_t)glue_rng_below(glue_rng(5, 0), (uint64_t)i, TABLE_ROWS - 2); /* some often, two never */
    for (int p = 0; p < 2; p++) {
        both[p]->ops->add_chosen(both[p], table.at[p], HOST_FLOAT32, rows, ROWS, WIDTH, x.at[p]);
        both[p]->ops->narrow(both[p], table.at[p], HOST_BFLOAT16, TABLE_ROWS * WIDTH, bf16[p]);
        both[p]->ops->add_chosen(both[p], bf16[p], HOST_BFLOAT16, rows, ROWS, WIDTH, x.at[p]);
        both[p]->ops->add_to_chosen(both[p], table.at[p], rows, ROWS, WIDTH, x.at[p]);
        both[p]->ops->take_chosen(both[p], table.at[p], rows, ROWS, WIDTH, taken.at[p]);
    }
    both[THERE]->ops->release(both[THERE], bf16[THERE]);
    expect(x, 0, "add_chosen");
    expect(table, 0, "add_to_chosen");
    expect(taken, 0, "take_chosen");
}

ZT_TEST(test_types) {
    twin_t x = twin(N, 3.0), wide = twin(N, 1.0);
    uint16_t narrow[N];
    void *bf16[] = {narrow, both[THERE]->ops->allocate(both[THERE], sizeof narrow)};
    x.at[HERE][0] = INFINITY;
    x.at[HERE][1] = -1e-41f;
    x.at[HERE][2] = 3.3961e38f; /* rounds up to infinity */
    x.at[HERE][3] = NAN;
    both[THERE]->ops->copy_in(both[THERE], x.at[THERE], x.at[HERE], sizeof(float) * N);
    for (int p = 0; p < 2; p++) {
        both[p]->ops->narrow(both[p], x.at[p], HOST_BFLOAT16, N, bf16[p]);
        both[p]->ops->widen(both[p], bf16[p], HOST_BFLOAT16, N, wide.at[p]);
    }
    both[THERE]->ops->release(both[THERE], bf16[THERE]);
    expect(wide, 0, "narrow and widen");
}

ZT_TEST(test_elements) {
    twin_t x = twin(N, 3.0), y = twin(N, 1.0), cdf = twin(N, 1.0), d = twin(N, 1.0), t = twin(N, 1.0);
    for (int p = 0; p < 2; p++) {
        both[p]->ops->gelu_forward(both[p], x.at[p], N, y.at[p], cdf.at[p]);
        both[p]->ops->gelu_backward(both[p], x.at[p], cdf.at[p], N, d.at[p]);
        both[p]->ops->dropout(both[p], y.at[p], N, 0.3, glue_rng(3, 4));
        both[p]->ops->tanh_forward(both[p], t.at[p], N);
    }
    expect(t, 3e-7, "tanh_forward");
    expect(y, 3e-7, "gelu_forward and dropout");
    expect(cdf, 3e-7, "gelu_forward's cdf");
    expect(d, 5e-7, "gelu_backward");
}

/* A mask by itself: bits, whatever the values are. */
ZT_TEST(test_dropout) {
    twin_t x = twin(N, 1.0), y = twin(N, 1.0), d = twin(N, 1.0);
    for (int p = 0; p < 2; p++) {
        both[p]->ops->dropout(both[p], x.at[p], N, 0.5, glue_rng(8, 9));
        both[p]->ops->tanh_backward(both[p], y.at[p], N, d.at[p]);
    }
    expect(x, 0, "dropout");
    expect(d, 0, "tanh_backward");
}

ZT_TEST(test_norm) {
    twin_t x = twin(N, 2.0), weight = twin(WIDTH, 1.0), bias = twin(WIDTH, 1.0), normal = twin(N, 1.0);
    twin_t inverse = twin(ROWS, 1.0), d = twin(N, 1.0), d_weight = twin(WIDTH, 1.0), d_bias = twin(WIDTH, 1.0);
    for (int p = 0; p < 2; p++) {
        both[p]->ops->norm_forward(both[p], (host_affine_arrays_t){weight.at[p], bias.at[p]}, ROWS, WIDTH, 1e-5,
                                   x.at[p], normal.at[p], inverse.at[p]);
        both[p]->ops->norm_backward(both[p], weight.at[p], normal.at[p], inverse.at[p], ROWS, WIDTH, d.at[p],
                                    (host_affine_arrays_t){d_weight.at[p], d_bias.at[p]});
    }
    expect(x, 1e-6, "norm_forward");
    expect(normal, 1e-6, "norm_forward's normal");
    expect(inverse, 1e-6, "norm_forward's inverse deviation");
    expect(d, 1e-6, "norm_backward");
    expect(d_weight, 1e-6, "norm_backward's weight");
    expect(d_bias, 0, "norm_backward's bias");
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* A device whose products round their operands in place of the test's. */
static void in_bf16(void (*fn)(double), double argument) {
    host_compute_t *usual = both[THERE];
    both[THERE] = open_device(1);
    fn(argument);
    drop_twins();
    host_compute_close(both[THERE]);
    both[THERE] = usual;
}

static void one_product(int a_transposed, int b_transposed, double keep, double tolerance) {
    enum { M = 19, COLUMNS = 13, INNER = 29 };
    twin_t a = twin(M * INNER, 1.0), b = twin(INNER * COLUMNS, 1.0), out = twin(M * COLUMNS, 1.0);

    for (int p = 0; p < 2; p++)
        both[p]->ops->matmul(both[p], M, COLUMNS, INNER,
                             (host_matrix_t){a.at[p], a_transposed ? M : INNER, a_transposed},
                             (host_matrix_t){b.at[p], b_transposed ? INNER : COLUMNS, b_transposed}, keep, out.at[p]);
    expect(out, tolerance, a_transposed ? "transposed product" : "product");
    drop_twins();
}

static void all_products(double tolerance) {
    for (int i = 0; i < 8; i++)
        one_product(i & 1, i >> 1 & 1, i >> 2 ? 1.0 : 0.0, tolerance);
}

ZT_TEST(test_products) {
    all_products(1e-6);
    in_bf16(all_products, 1e-2);
}

/* bf16 really rounds: a product of ones and a number between two of its values. */
static void product_of_one(double number) {
    host_compute_t *device = both[THERE];
    float *x = twin(1, 1.0).at[THERE], *y = twin(1, 1.0).at[THERE], value = (float)number;
    device->ops->copy_in(device, x, &value, sizeof value);
    device->ops->matmul(device, 1, 1, 1, (host_matrix_t){x, 1, 0}, (host_matrix_t){x, 1, 0}, 0.0, y);
    device->ops->copy_out(device, &value, y, sizeof value);
    if (strstr(device->what, "Test double") != NULL) /* cuBLAS may round to bf16, and need not */
        ck_assert_float_eq(value, 1.0f);
    else
        ck_assert_float_eq_tol(value, 1.0f, 0.01f);
}

ZT_TEST(test_bf16) { in_bf16(product_of_one, 1.001); }

/* ---- attention --------------------------------------------------------------------------------------------------- */

ZT_TEST(test_attention) {
    enum { HEADS = 3, HEAD_WIDTH = 5, TOKENS = 47, ELEMS = TOKENS * HEADS * HEAD_WIDTH };
    static const int32_t starts[] = {0, 1, 9, 42, 47};
    host_attention_shape_t shape = {starts, 4, HEADS, HEAD_WIDTH};
    twin_t q = twin(ELEMS, 1.0), k = twin(ELEMS, 1.0), v = twin(ELEMS, 1.0);
    twin_t probs = twin(host_attention_n_probs(&shape), 1.0), context = twin(ELEMS, 1.0), d = twin(ELEMS, 1.0);
    twin_t scratch = twin(33 * 33, 1.0), dq = twin(ELEMS, 1.0), dk = twin(ELEMS, 1.0), dv = twin(ELEMS, 1.0);

    for (int p = 0; p < 2; p++) {
        both[p]->ops->attention_forward(both[p], &shape, q.at[p], k.at[p], v.at[p], probs.at[p], context.at[p]);
        both[p]->ops->attention_backward(both[p], &shape, q.at[p], k.at[p], v.at[p], probs.at[p], d.at[p],
                                         scratch.at[p], dq.at[p], dk.at[p], dv.at[p]);
    }
    expect(probs, 1e-6, "attention's probabilities");
    expect(context, 1e-6, "attention's context");
    expect(dq, 1e-6, "attention's dq");
    expect(dk, 1e-6, "attention's dk");
    expect(dv, 1e-6, "attention's dv");
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Two passes, so that the second one's gradients are added and the arena is used again. Returns the loss. */
static double pass(host_model_t *model, host_params_t *out_grads) {
    host_encoder_t encoder;
    glue_error_t err = {""};
    double loss = 0.0;
    ck_assert_int_eq(host_encoder_init(&encoder, model, &err), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(host_encoder_forward(&encoder, &tiny_batch, 1, 99, NULL, &err) == 0, "%s", err.text);
        loss += host_encoder_loss(&encoder, &tiny_batch, 0.25);
        ck_assert_msg(host_encoder_backward(&encoder, &tiny_batch, NULL, &err) == 0, "%s", err.text);
    }
    for (size_t i = 0; i < model->params.n; i++) /* gradients to where values are, which are copied */
        model->params.list[i].compute->ops->copy(
            model->params.list[i].compute, model->params.list[i].value, model->params.list[i].grad,
            model->params.list[i].n_elems * host_dtype_nbytes(model->params.dtype));
    ck_assert_msg(host_params_copy(&model->params, out_grads, &err) == 0, "%s", err.text);
    host_encoder_free(&encoder);
    return loss;
}

static void compare_models(host_dtype_t dtype, double tolerance) {
    host_model_t here, there;
    host_params_t expected, found;
    glue_error_t err = {""};
    make_tiny_model(&here, 0, 0.2, dtype);
    make_tiny_model(&there, 0, 0.2, dtype);
    ck_assert_msg(host_params_move(&there.params, both[THERE], &err) == 0, "%s", err.text);
    double loss_here = pass(&here, &expected);
    double loss_there = pass(&there, &found);
    ck_assert_double_eq_tol(loss_here, loss_there, 1e-5);
    for (size_t i = 0; i < expected.n; i++) {
        double largest = 1e-2; /* of a key's bias it is 0 but for rounding */
        for (size_t j = 0; j < expected.list[i].n_elems; j++)
            largest = fmax(largest, fabs((double)host_param_get(&expected.list[i], j)));
        for (size_t j = 0; j < expected.list[i].n_elems; j++)
            ck_assert_msg(fabs((double)host_param_get(&expected.list[i], j) -
                               (double)host_param_get(&found.list[i], j)) <= tolerance * largest,
                          "gradient %zu of %s is %.9g; %.9g is right", j, expected.list[i].name,
                          (double)host_param_get(&found.list[i], j), (double)host_param_get(&expected.list[i], j));
    }
    host_params_free(&expected);
    host_params_free(&found);
    host_model_free(&here);
    host_model_free(&there);
}

ZT_TEST(test_model) { compare_models(HOST_FLOAT32, 2e-5); }

ZT_TEST(test_model_bf16) { compare_models(HOST_BFLOAT16, 1.0 / 128); }

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

ZT_TEST(test_what_is_refused) {
    glue_error_t err = {""};
    host_compute_t *out;
    ck_assert_int_eq(host_cuda_open(99, 0, &out, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "device 99 is asked for"));
    ck_assert_ptr_null(out);
}

/* More than the device has: an error, the parameters can be released, and the first error stays. */
ZT_TEST(test_out_of_memory) {
    host_compute_t *device = both[THERE];
    glue_error_t err = {""};
    ck_assert_ptr_null(device->ops->allocate(device, (size_t)1 << 50));
    ck_assert_int_eq(host_compute_check(device, &err), 0);
    device->ops->copy(device, NULL, NULL, 64); /* a driver's error */
    device->ops->zero(device, NULL, 0);
    ck_assert_int_eq(host_compute_check(device, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "cuMemcpyDtoDAsync"));
    ck_assert_ptr_null(device->ops->allocate(device, 64));
    host_compute_close(device);
    both[THERE] = open_device(0);
}

ZT_SUITE_WITH("host_cuda", setup, teardown)
