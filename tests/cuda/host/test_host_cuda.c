/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_cuda.c - the reference host on a CUDA device beside the processor: each call of compute.h, then whole
 * passes.
 *
 * What the kernels promise to be the processor's bits is compared as bits; sums along a row or an inner dimension,
 * which are added in another order, within a few units in the last place of their largest term. Runs on the test
 * double, and on a GPU. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/cuda/device.h"
#include "host/encoder.h"
#include "suite.h"

enum { ROWS = 23, WIDTH = 37, N = ROWS * WIDTH, TABLE_ROWS = 11 };

static host_compute_t *processor, *device;

static host_compute_t *open_device(host_products_t products, int is_bf16) {
    host_cuda_options_t options = {.products = products, .is_bf16 = is_bf16};
    glue_error_t err = {""};
    host_compute_t *out;

    ck_assert_msg(host_cuda_open(&options, &out, &err) == 0, "%s", err.text);
    return out;
}

static void setup(void) {
    processor = host_compute_processor();
    device = open_device(HOST_PRODUCTS_OWN, 0);
}

static void teardown(void) {
    glue_error_t err = {""};

    ck_assert_msg(host_compute_check(device, &err) == 0, "%s", err.text);
    host_compute_close(device);
}

/* ---- one array in both places ------------------------------------------------------------------------------------ */

typedef struct twin {
    size_t n;
    float *here;  /* the processor's */
    void *there;  /* the device's */
    float *found; /* what came from there */
} twin_t;

static twin_t twin(size_t n, uint64_t stream, double scale) {
    twin_t t = {n, malloc(n * sizeof(float)), device->ops->allocate(device, n * sizeof(float)),
                malloc(n * sizeof(float))};

    ck_assert_ptr_nonnull(t.there);
    for (size_t i = 0; i < n; i++)
        t.here[i] = (float)(scale * glue_rng_normal(glue_rng(11, stream), i));
    device->ops->copy_in(device, t.there, t.here, n * sizeof(float));
    return t;
}

static void drop(twin_t *t) {
    device->ops->release(device, t->there);
    free(t->here);
    free(t->found);
}

static void look(twin_t *t) { device->ops->copy_out(device, t->found, t->there, t->n * sizeof(float)); }

static void expect_bits(twin_t *t, const char *what) {
    look(t);
    for (size_t i = 0; i < t->n; i++)
        ck_assert_msg(memcmp(&t->here[i], &t->found[i], sizeof(float)) == 0, "%s: element %zu is %.9g; %.9g is right",
                      what, i, (double)t->found[i], (double)t->here[i]);
    drop(t);
}

/* relative to the largest element: what is summed has about that size */
static void expect_near(twin_t *t, double tolerance, const char *what) {
    double largest = 1e-30;

    look(t);
    for (size_t i = 0; i < t->n; i++)
        largest = fmax(largest, fabs((double)t->here[i]));
    for (size_t i = 0; i < t->n; i++)
        ck_assert_msg(fabs((double)t->here[i] - (double)t->found[i]) <= tolerance * largest,
                      "%s: element %zu is %.9g; %.9g is right", what, i, (double)t->found[i], (double)t->here[i]);
    drop(t);
}

/* ---- rows, columns, elements ------------------------------------------------------------------------------------- */

START_TEST(test_rows) {
    twin_t y = twin(N, 1, 1.0), row = twin(WIDTH, 2, 1.0), x = twin(N, 3, 1.0), sum = twin(WIDTH, 4, 1.0);

    processor->ops->fill_rows(processor, y.here, row.here, ROWS, WIDTH);
    device->ops->fill_rows(device, y.there, row.there, ROWS, WIDTH);
    processor->ops->add(processor, y.here, x.here, N);
    device->ops->add(device, y.there, x.there, N);
    processor->ops->sum_rows(processor, x.here, ROWS, WIDTH, sum.here);
    device->ops->sum_rows(device, x.there, ROWS, WIDTH, sum.there);
    expect_bits(&y, "fill_rows and add");
    expect_bits(&sum, "sum_rows");
    drop(&row);
    drop(&x);
}
END_TEST

START_TEST(test_chosen) {
    twin_t table = twin(TABLE_ROWS * WIDTH, 1, 1.0), x = twin(N, 2, 1.0), taken = twin(N, 3, 1.0),
           put = twin(N, 4, 1.0);
    uint16_t narrow[TABLE_ROWS * WIDTH];
    int32_t rows[ROWS], distinct[TABLE_ROWS];
    void *bf16 = device->ops->allocate(device, sizeof narrow);

    for (int i = 0; i < ROWS; i++)
        rows[i] = (int32_t)glue_rng_below(glue_rng(5, 0), (uint64_t)i, TABLE_ROWS - 2); /* some often, two never */
    for (int i = 0; i < TABLE_ROWS; i++)
        distinct[i] = (i * 7 + 3) % ROWS;
    processor->ops->add_chosen(processor, table.here, HOST_FLOAT32, rows, ROWS, WIDTH, x.here);
    device->ops->add_chosen(device, table.there, HOST_FLOAT32, rows, ROWS, WIDTH, x.there);
    processor->ops->narrow(processor, table.here, HOST_BFLOAT16, TABLE_ROWS * WIDTH, narrow);
    device->ops->narrow(device, table.there, HOST_BFLOAT16, TABLE_ROWS * WIDTH, bf16);
    processor->ops->add_chosen(processor, narrow, HOST_BFLOAT16, rows, ROWS, WIDTH, x.here);
    device->ops->add_chosen(device, bf16, HOST_BFLOAT16, rows, ROWS, WIDTH, x.there);
    processor->ops->add_to_chosen(processor, table.here, rows, ROWS, WIDTH, x.here);
    device->ops->add_to_chosen(device, table.there, rows, ROWS, WIDTH, x.there);
    processor->ops->take_chosen(processor, table.here, rows, ROWS, WIDTH, taken.here);
    device->ops->take_chosen(device, table.there, rows, ROWS, WIDTH, taken.there);
    processor->ops->put_chosen(processor, put.here, distinct, TABLE_ROWS, WIDTH, taken.here);
    device->ops->put_chosen(device, put.there, distinct, TABLE_ROWS, WIDTH, taken.there);
    device->ops->release(device, bf16);
    expect_bits(&x, "add_chosen");
    expect_bits(&table, "add_to_chosen");
    expect_bits(&taken, "take_chosen");
    expect_bits(&put, "put_chosen");
}
END_TEST

START_TEST(test_types) {
    twin_t x = twin(N, 1, 3.0), wide = twin(N, 2, 1.0);
    uint16_t narrow[N];
    void *there = device->ops->allocate(device, sizeof narrow);

    x.here[0] = INFINITY;
    x.here[1] = -1e-41f;
    x.here[2] = 3.3961e38f; /* rounds up to infinity */
    x.here[3] = NAN;
    device->ops->copy_in(device, x.there, x.here, sizeof(float) * N);
    processor->ops->narrow(processor, x.here, HOST_BFLOAT16, N, narrow);
    device->ops->narrow(device, x.there, HOST_BFLOAT16, N, there);
    processor->ops->widen(processor, narrow, HOST_BFLOAT16, N, wide.here);
    device->ops->widen(device, there, HOST_BFLOAT16, N, wide.there);
    device->ops->release(device, there);
    expect_bits(&wide, "narrow and widen");
    drop(&x);
}
END_TEST

START_TEST(test_elements) {
    twin_t x = twin(N, 1, 3.0), y = twin(N, 2, 1.0), cdf = twin(N, 3, 1.0), d = twin(N, 4, 1.0), t = twin(N, 5, 1.0);
    glue_rng_t rng = glue_rng(3, 4);

    processor->ops->gelu_forward(processor, x.here, N, y.here, cdf.here);
    device->ops->gelu_forward(device, x.there, N, y.there, cdf.there);
    processor->ops->gelu_backward(processor, x.here, cdf.here, N, d.here);
    device->ops->gelu_backward(device, x.there, cdf.there, N, d.there);
    processor->ops->dropout(processor, y.here, N, 0.3, rng);
    device->ops->dropout(device, y.there, N, 0.3, rng);
    processor->ops->tanh_forward(processor, t.here, N);
    device->ops->tanh_forward(device, t.there, N);
    expect_near(&t, 3e-7, "tanh_forward");
    expect_near(&y, 3e-7, "gelu_forward and dropout");
    expect_near(&cdf, 3e-7, "gelu_forward's cdf");
    expect_near(&d, 5e-7, "gelu_backward");
    drop(&x);
}
END_TEST

/* A mask by itself: bits, whatever the values are. */
START_TEST(test_dropout) {
    twin_t x = twin(N, 1, 1.0), y = twin(N, 2, 1.0), d = twin(N, 3, 1.0);

    processor->ops->dropout(processor, x.here, N, 0.5, glue_rng(8, 9));
    device->ops->dropout(device, x.there, N, 0.5, glue_rng(8, 9));
    processor->ops->tanh_backward(processor, y.here, N, d.here);
    device->ops->tanh_backward(device, y.there, N, d.there);
    expect_bits(&x, "dropout");
    expect_bits(&d, "tanh_backward");
    drop(&y);
}
END_TEST

START_TEST(test_norm) {
    twin_t x = twin(N, 1, 2.0), weight = twin(WIDTH, 2, 1.0), bias = twin(WIDTH, 3, 1.0), normal = twin(N, 4, 1.0);
    twin_t inverse = twin(ROWS, 5, 1.0), d = twin(N, 6, 1.0), d_weight = twin(WIDTH, 7, 1.0),
           d_bias = twin(WIDTH, 8, 1.0);

    processor->ops->norm_forward(processor, (host_affine_arrays_t){weight.here, bias.here}, ROWS, WIDTH, 1e-5, x.here,
                                 normal.here, inverse.here);
    device->ops->norm_forward(device, (host_affine_arrays_t){weight.there, bias.there}, ROWS, WIDTH, 1e-5, x.there,
                              normal.there, inverse.there);
    processor->ops->norm_backward(processor, weight.here, normal.here, inverse.here, ROWS, WIDTH, d.here,
                                  (host_affine_arrays_t){d_weight.here, d_bias.here});
    device->ops->norm_backward(device, weight.there, normal.there, inverse.there, ROWS, WIDTH, d.there,
                               (host_affine_arrays_t){d_weight.there, d_bias.there});
    expect_near(&x, 1e-6, "norm_forward");
    expect_near(&normal, 1e-6, "norm_forward's normal");
    expect_near(&inverse, 1e-6, "norm_forward's inverse deviation");
    expect_near(&d, 1e-6, "norm_backward");
    expect_near(&d_weight, 1e-6, "norm_backward's weight");
    expect_bits(&d_bias, "norm_backward's bias");
    drop(&weight);
    drop(&bias);
}
END_TEST

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void one_product(int a_transposed, int b_transposed, double keep, double tolerance) {
    enum { M = 19, COLUMNS = 13, INNER = 29 };
    twin_t a = twin(M * INNER, 1, 1.0), b = twin(INNER * COLUMNS, 2, 1.0), out = twin(M * COLUMNS, 3, 1.0);
    host_matrix_t a_here = {a.here, a_transposed ? M : INNER, a_transposed}, a_there = a_here;
    host_matrix_t b_here = {b.here, b_transposed ? INNER : COLUMNS, b_transposed}, b_there = b_here;

    a_there.data = a.there;
    b_there.data = b.there;
    processor->ops->matmul(processor, M, COLUMNS, INNER, a_here, b_here, keep, out.here);
    device->ops->matmul(device, M, COLUMNS, INNER, a_there, b_there, keep, out.there);
    expect_near(&out, tolerance, a_transposed ? "transposed product" : "product");
    drop(&a);
    drop(&b);
}

static void all_products(double tolerance) {
    for (int i = 0; i < 8; i++)
        one_product(i & 1, i >> 1 & 1, i >> 2 ? 1.0 : 0.0, tolerance);
}

START_TEST(test_own_products) { all_products(1e-6); }
END_TEST

START_TEST(test_cublas) {
    host_compute_t *own = device;

    device = open_device(HOST_PRODUCTS_CUBLAS, 0);
    all_products(1e-6);
    ck_assert_ptr_nonnull(strstr(device->what, "cuBLAS"));
    host_compute_close(device);
    device = open_device(HOST_PRODUCTS_AUTO, 1);
    all_products(1e-2);
    host_compute_close(device);
    device = own;
}
END_TEST

/* bf16 really rounds: a product of ones and a number between two of its values. */
START_TEST(test_cublas_bf16) {
    const float number = 1.001f;
    float *there[3], found = 0.0f;
    host_compute_t *own = device;

    device = open_device(HOST_PRODUCTS_CUBLAS, 1);
    for (int i = 0; i < 3; i++)
        there[i] = device->ops->allocate(device, sizeof number);
    device->ops->copy_in(device, there[0], &number, sizeof number);
    device->ops->copy_in(device, there[1], &number, sizeof number);
    device->ops->matmul(device, 1, 1, 1, (host_matrix_t){there[0], 1, 0}, (host_matrix_t){there[1], 1, 0}, 0.0,
                        there[2]);
    device->ops->copy_out(device, &found, there[2], sizeof found);
    for (int i = 0; i < 3; i++)
        device->ops->release(device, there[i]);
    if (strstr(device->what, "Test double") != NULL) /* cuBLAS may round to bf16, and need not */
        ck_assert_float_eq(found, 1.0f);
    else
        ck_assert_float_eq_tol(found, 1.0f, 0.01f);
    host_compute_close(device);
    device = own;
}
END_TEST

/* ---- attention --------------------------------------------------------------------------------------------------- */

START_TEST(test_attention) {
    enum { HEADS = 3, HEAD_WIDTH = 5, TOKENS = 47, ELEMS = TOKENS * HEADS * HEAD_WIDTH };
    static const int32_t starts[] = {0, 1, 9, 42, 47};
    host_attention_shape_t shape = {starts, 4, HEADS, HEAD_WIDTH};
    size_t n_probs = host_attention_n_probs(&shape);
    twin_t q = twin(ELEMS, 1, 1.0), k = twin(ELEMS, 2, 1.0), v = twin(ELEMS, 3, 1.0), probs = twin(n_probs, 4, 1.0);
    twin_t context = twin(ELEMS, 5, 1.0), d = twin(ELEMS, 6, 1.0), scratch = twin(33 * 33, 7, 1.0);
    twin_t dq = twin(ELEMS, 8, 1.0), dk = twin(ELEMS, 9, 1.0), dv = twin(ELEMS, 10, 1.0);

    processor->ops->attention_forward(processor, &shape, q.here, k.here, v.here, probs.here, context.here);
    device->ops->attention_forward(device, &shape, q.there, k.there, v.there, probs.there, context.there);
    processor->ops->attention_backward(processor, &shape, q.here, k.here, v.here, probs.here, d.here, scratch.here,
                                       dq.here, dk.here, dv.here);
    device->ops->attention_backward(device, &shape, q.there, k.there, v.there, probs.there, d.there, scratch.there,
                                    dq.there, dk.there, dv.there);
    expect_near(&probs, 1e-6, "attention's probabilities");
    expect_near(&context, 1e-6, "attention's context");
    expect_near(&dq, 1e-6, "attention's dq");
    expect_near(&dk, 1e-6, "attention's dk");
    expect_near(&dv, 1e-6, "attention's dv");
    drop(&q);
    drop(&k);
    drop(&v);
    drop(&d);
    drop(&scratch);
}
END_TEST

/* ---- the model --------------------------------------------------------------------------------------------------- */

static const int32_t ids[] = {2, 5, 7, 3, 2, 3, 2, 11, 5, 5, 9, 12, 3, 6, 2};
static const int32_t types[] = {0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0};
static const int32_t starts_of_batch[] = {0, 4, 6, 14, 15};
static const double targets[] = {0, 2, 1, 2};
static const host_batch_t batch = {ids, types, starts_of_batch, targets, 4};

static void make_model(host_model_t *model, host_dtype_t dtype) {
    host_model_config_t config = {.n_pieces = 13,
                                  .max_positions = 9,
                                  .n_types = 2,
                                  .hidden = 12,
                                  .n_layers = 2,
                                  .n_heads = 3,
                                  .ffn = 20,
                                  .n_labels = 3,
                                  .dropout = 0.2,
                                  .layer_norm_eps = 1e-12,
                                  .init_std = 0.3,
                                  .dtype = dtype};
    glue_error_t err = {""};

    ck_assert_msg(host_model_init(model, &config, &err) == 0, "%s", err.text);
    host_model_randomise(model, 7);
}

/* Two passes, so that the second one's gradients are added and the arena is used again. Returns the loss. */
static double pass(host_model_t *model, host_params_t *out_grads) {
    host_encoder_t encoder;
    glue_error_t err = {""};
    double loss = 0.0;

    ck_assert_int_eq(host_encoder_init(&encoder, model, &err), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(host_encoder_forward(&encoder, &batch, 1, 99, NULL, &err) == 0, "%s", err.text);
        loss += host_encoder_loss(&encoder, &batch, 0.25);
        ck_assert_msg(host_encoder_backward(&encoder, &batch, NULL, &err) == 0, "%s", err.text);
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
    double loss_here, loss_there;

    make_model(&here, dtype);
    make_model(&there, dtype);
    ck_assert_msg(host_params_move(&there.params, device, &err) == 0, "%s", err.text);
    loss_here = pass(&here, &expected);
    loss_there = pass(&there, &found);
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

START_TEST(test_model) { compare_models(HOST_FLOAT32, 2e-5); }
END_TEST

START_TEST(test_model_bf16) { compare_models(HOST_BFLOAT16, 1.0 / 128); }
END_TEST

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

START_TEST(test_no_such_device) {
    host_cuda_options_t options = {.device = 99};
    glue_error_t err = {""};
    host_compute_t *out;

    ck_assert_int_eq(host_cuda_open(&options, &out, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "device 99 is asked for"));
    ck_assert_ptr_null(out);
}
END_TEST

START_TEST(test_bf16_needs_cublas) {
    host_cuda_options_t options = {.products = HOST_PRODUCTS_OWN, .is_bf16 = 1};
    glue_error_t err = {""};
    host_compute_t *out;

    ck_assert_int_eq(host_cuda_open(&options, &out, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "cuBLAS is needed"));
}
END_TEST

/* More than the device has: an error, the parameters can be released, and the first error stays. */
START_TEST(test_out_of_memory) {
    glue_error_t err = {""};

    ck_assert_ptr_null(device->ops->allocate(device, (size_t)1 << 50));
    ck_assert_int_eq(host_compute_check(device, &err), 0);
    device->ops->copy(device, NULL, NULL, 64); /* a driver's error */
    device->ops->zero(device, NULL, 0);
    ck_assert_int_eq(host_compute_check(device, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "cuMemcpyDtoDAsync"));
    ck_assert_ptr_null(device->ops->allocate(device, 64));
    host_compute_close(device);
    device = open_device(HOST_PRODUCTS_OWN, 0);
}
END_TEST

ZT_MAIN_WITH("host_cuda", setup, teardown, test_rows, test_chosen, test_types, test_elements, test_dropout, test_norm,
             test_own_products, test_cublas, test_cublas_bf16, test_attention, test_model, test_model_bf16,
             test_no_such_device, test_bf16_needs_cublas, test_out_of_memory)
