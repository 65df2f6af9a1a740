/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/model_config.c - the parameters of the usual model families from their config.json, with the names and
 * shapes that Hugging Face's implementations give them. A family is a function of its sizes. */
#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { MOST_SIZE = 1 << 30, MOST_LAYERS = 10000, TEXT_NBYTES = 160 };

typedef struct builder {
    model_t *model;
    const json_t *config;
    char prefix[TEXT_NBYTES / 2]; /* of the names to come */
    int status;                   /* 0, or 1 once something was reported */
} builder_t;

/* A whole number from 1 to `most`. `other`: a second name for it, or NULL; deflt < 0: it has to be there. */
static int64_t size_of(builder_t *b, const char *key, const char *other, int64_t deflt, int64_t most) {
    const json_t *value = json_object_get(b->config, key);
    if (!value && other)
        value = json_object_get(b->config, other);
    if ((!value || json_is_null(value)) && deflt >= 0)
        return deflt;
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > most) {
        if (!b->status)
            b->status = zf_cli_complain(b->model->path, "\"%s\" is %s; need a whole number from 1 to %lld", key,
                                        !value                   ? "missing"
                                        : json_is_integer(value) ? "out of range"
                                                                 : "no whole number",
                                        (long long)most);
        return 1;
    }
    return json_integer_value(value);
}

static int is_set(const builder_t *b, const char *key, int deflt) {
    const json_t *value = json_object_get(b->config, key);
    return json_is_boolean(value) ? json_is_true(value) : deflt;
}

static void in(builder_t *b, const char *format, long long layer) {
    snprintf(b->prefix, sizeof b->prefix, format, layer); /* formats are of this file */
}

/* columns = 0: a vector. */
static void add(builder_t *b, const char *name, int64_t rows, int64_t columns) {
    char whole[TEXT_NBYTES];
    const int64_t shape[2] = {rows, columns};
    if (b->status)
        return;
    snprintf(whole, sizeof whole, "%s%s", b->prefix, name);
    b->status = model_add(b->model, whole, MODEL_ANY_DTYPE, columns ? 2 : 1, shape);
}

/* A linear layer [rows, columns], and its bias. */
static void linear(builder_t *b, const char *name, int64_t rows, int64_t columns, int has_bias) {
    char text[TEXT_NBYTES / 2];
    snprintf(text, sizeof text, "%s.weight", name);
    add(b, text, rows, columns);
    snprintf(text, sizeof text, "%s.bias", name);
    if (has_bias)
        add(b, text, rows, 0);
}

/* GPT-2's Conv1D is [in, out]. */
static void conv1d(builder_t *b, const char *name, int64_t n_in, int64_t n_out) {
    char text[TEXT_NBYTES / 2];
    snprintf(text, sizeof text, "%s.weight", name);
    add(b, text, n_in, n_out);
    if (!b->status)
        b->model->params[b->model->n - 1].channels_are_rows = 1;
    snprintf(text, sizeof text, "%s.bias", name);
    add(b, text, n_out, 0);
}

/* A layer norm with its bias. */
static void norm(builder_t *b, const char *name, int64_t n) {
    char text[TEXT_NBYTES / 2];
    snprintf(text, sizeof text, "%s.weight", name);
    add(b, text, n, 0);
    snprintf(text, sizeof text, "%s.bias", name);
    add(b, text, n, 0);
}

/* ---- families ---------------------------------------------------------------------------------------------------- */

/* Llama, Mistral, Qwen2, Qwen3: SwiGLU, RMS norms, grouped queries. */
static void llama(builder_t *b, const char *type) {
    int64_t h = size_of(b, "hidden_size", NULL, -1, MOST_SIZE),
            f = size_of(b, "intermediate_size", NULL, -1, MOST_SIZE);
    int64_t layers = size_of(b, "num_hidden_layers", NULL, -1, MOST_LAYERS);
    int64_t heads = size_of(b, "num_attention_heads", NULL, -1, MOST_SIZE),
            vocab = size_of(b, "vocab_size", NULL, -1, MOST_SIZE);
    int64_t kv_heads = size_of(b, "num_key_value_heads", NULL, heads, MOST_SIZE);
    int64_t head = size_of(b, "head_dim", NULL, h / heads, 1 << 16);
    int has_bias = is_set(b, "attention_bias", strcmp(type, "qwen2") == 0), has_norms = strcmp(type, "qwen3") == 0;
    add(b, "model.embed_tokens.weight", vocab, h);
    for (int64_t i = 0; i < layers && !b->status; i++) {
        in(b, "model.layers.%lld.", i);
        linear(b, "self_attn.q_proj", heads * head, h, has_bias);
        linear(b, "self_attn.k_proj", kv_heads * head, h, has_bias);
        linear(b, "self_attn.v_proj", kv_heads * head, h, has_bias);
        linear(b, "self_attn.o_proj", h, heads * head, has_bias && strcmp(type, "qwen2") != 0);
        if (has_norms) {
            add(b, "self_attn.q_norm.weight", head, 0);
            add(b, "self_attn.k_norm.weight", head, 0);
        }
        linear(b, "mlp.gate_proj", f, h, is_set(b, "mlp_bias", 0));
        linear(b, "mlp.up_proj", f, h, is_set(b, "mlp_bias", 0));
        linear(b, "mlp.down_proj", h, f, is_set(b, "mlp_bias", 0));
        add(b, "input_layernorm.weight", h, 0);
        add(b, "post_attention_layernorm.weight", h, 0);
    }
    in(b, "", 0);
    add(b, "model.norm.weight", h, 0);
    if (!is_set(b, "tie_word_embeddings", 0))
        add(b, "lm_head.weight", vocab, h);
    b->model->n_layers = (uint64_t)layers;
    b->model->hidden = (uint64_t)h;
}

static void gpt2(builder_t *b, const char *type) {
    int64_t h = size_of(b, "n_embd", "hidden_size", -1, MOST_SIZE),
            layers = size_of(b, "n_layer", "num_hidden_layers", -1, MOST_LAYERS);
    int64_t f = size_of(b, "n_inner", NULL, 4 * h, MOST_SIZE), vocab = size_of(b, "vocab_size", NULL, -1, MOST_SIZE);
    (void)type;
    add(b, "transformer.wte.weight", vocab, h);
    add(b, "transformer.wpe.weight", size_of(b, "n_positions", "n_ctx", -1, MOST_SIZE), h);
    for (int64_t i = 0; i < layers && !b->status; i++) {
        in(b, "transformer.h.%lld.", i);
        norm(b, "ln_1", h);
        conv1d(b, "attn.c_attn", h, 3 * h);
        conv1d(b, "attn.c_proj", h, h);
        norm(b, "ln_2", h);
        conv1d(b, "mlp.c_fc", h, f);
        conv1d(b, "mlp.c_proj", f, h);
    }
    in(b, "", 0);
    norm(b, "transformer.ln_f", h);
    if (!is_set(b, "tie_word_embeddings", 1))
        add(b, "lm_head.weight", vocab, h);
    b->model->n_layers = (uint64_t)layers;
    b->model->hidden = (uint64_t)h;
}

/* BERT, RoBERTa: the encoder with its pooler, without a head. */
static void bert(builder_t *b, const char *type) {
    int64_t h = size_of(b, "hidden_size", NULL, -1, MOST_SIZE),
            f = size_of(b, "intermediate_size", NULL, -1, MOST_SIZE);
    int64_t layers = size_of(b, "num_hidden_layers", NULL, -1, MOST_LAYERS);
    (void)type;
    in(b, "embeddings.", 0);
    add(b, "word_embeddings.weight", size_of(b, "vocab_size", NULL, -1, MOST_SIZE), h);
    add(b, "position_embeddings.weight", size_of(b, "max_position_embeddings", NULL, -1, MOST_SIZE), h);
    add(b, "token_type_embeddings.weight", size_of(b, "type_vocab_size", NULL, 2, MOST_SIZE), h);
    norm(b, "LayerNorm", h);
    for (int64_t i = 0; i < layers && !b->status; i++) {
        in(b, "encoder.layer.%lld.", i);
        linear(b, "attention.self.query", h, h, 1);
        linear(b, "attention.self.key", h, h, 1);
        linear(b, "attention.self.value", h, h, 1);
        linear(b, "attention.output.dense", h, h, 1);
        norm(b, "attention.output.LayerNorm", h);
        linear(b, "intermediate.dense", f, h, 1);
        linear(b, "output.dense", h, f, 1);
        norm(b, "output.LayerNorm", h);
    }
    in(b, "", 0);
    linear(b, "pooler.dense", h, h, 1);
    b->model->n_layers = (uint64_t)layers;
    b->model->hidden = (uint64_t)h;
}

static void opt(builder_t *b, const char *type) {
    int64_t h = size_of(b, "hidden_size", NULL, -1, MOST_SIZE), f = size_of(b, "ffn_dim", NULL, -1, MOST_SIZE);
    int64_t layers = size_of(b, "num_hidden_layers", NULL, -1, MOST_LAYERS);
    int64_t e = size_of(b, "word_embed_proj_dim", NULL, h, MOST_SIZE);
    (void)type;
    in(b, "model.decoder.", 0);
    add(b, "embed_tokens.weight", size_of(b, "vocab_size", NULL, -1, MOST_SIZE), e);
    add(b, "embed_positions.weight", size_of(b, "max_position_embeddings", NULL, -1, MOST_SIZE) + 2, h);
    if (e != h) {
        add(b, "project_in.weight", h, e);
        add(b, "project_out.weight", e, h);
    }
    for (int64_t i = 0; i < layers && !b->status; i++) {
        in(b, "model.decoder.layers.%lld.", i);
        linear(b, "self_attn.k_proj", h, h, 1);
        linear(b, "self_attn.v_proj", h, h, 1);
        linear(b, "self_attn.q_proj", h, h, 1);
        linear(b, "self_attn.out_proj", h, h, 1);
        norm(b, "self_attn_layer_norm", h);
        linear(b, "fc1", f, h, 1);
        linear(b, "fc2", h, f, 1);
        norm(b, "final_layer_norm", h);
    }
    in(b, "model.decoder.", 0);
    if (is_set(b, "do_layer_norm_before", 1))
        norm(b, "final_layer_norm", h);
    b->model->n_layers = (uint64_t)layers;
    b->model->hidden = (uint64_t)h;
}

static void t5_attention(builder_t *b, const char *name, int64_t h, int64_t inner) {
    static const char *const parts[] = {"q", "k", "v"};
    char text[TEXT_NBYTES / 2];
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s.%s.weight", name, parts[i]);
        add(b, text, inner, h);
    }
    snprintf(text, sizeof text, "%s.o.weight", name);
    add(b, text, h, inner);
}

static void t5_stack(builder_t *b, int is_decoder, int64_t layers, int64_t h, int64_t inner, int64_t f) {
    const char *feed = json_string_value(json_object_get(b->config, "feed_forward_proj"));
    int is_gated = feed && strncmp(feed, "gated", 5) == 0;
    in(b, is_decoder ? "decoder." : "encoder.", 0);
    add(b, "block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        size_of(b, "relative_attention_num_buckets", NULL, 32, MOST_SIZE),
        size_of(b, "num_heads", NULL, -1, MOST_SIZE));
    for (int64_t i = 0; i < layers && !b->status; i++) {
        in(b, is_decoder ? "decoder.block.%lld." : "encoder.block.%lld.", i);
        t5_attention(b, "layer.0.SelfAttention", h, inner);
        add(b, "layer.0.layer_norm.weight", h, 0);
        if (is_decoder) {
            t5_attention(b, "layer.1.EncDecAttention", h, inner);
            add(b, "layer.1.layer_norm.weight", h, 0);
        }
        add(b, is_gated ? "ff.wi_0.weight" : "ff.wi.weight", f, h);
        if (is_gated)
            add(b, "ff.wi_1.weight", f, h);
        add(b, "ff.wo.weight", h, f);
        add(b, "ff.layer_norm.weight", h, 0);
    }
    in(b, is_decoder ? "decoder." : "encoder.", 0);
    add(b, "final_layer_norm.weight", h, 0);
    in(b, "", 0);
}

static void t5(builder_t *b, const char *type) {
    int64_t h = size_of(b, "d_model", NULL, -1, MOST_SIZE), f = size_of(b, "d_ff", NULL, -1, MOST_SIZE);
    int64_t layers = size_of(b, "num_layers", NULL, -1, MOST_LAYERS),
            vocab = size_of(b, "vocab_size", NULL, -1, MOST_SIZE);
    int64_t inner = size_of(b, "num_heads", NULL, -1, MOST_SIZE) * size_of(b, "d_kv", NULL, -1, 1 << 16);
    int64_t decoder = size_of(b, "num_decoder_layers", NULL, layers, MOST_LAYERS);
    (void)type;
    add(b, "shared.weight", vocab, h);
    t5_stack(b, 0, layers, h, inner, f);
    t5_stack(b, 1, decoder, h, inner, f);
    if (!is_set(b, "tie_word_embeddings", 1))
        add(b, "lm_head.weight", vocab, h);
    b->model->n_layers = (uint64_t)(layers + decoder);
    b->model->hidden = (uint64_t)h;
}

static const struct {
    const char *type;
    void (*build)(builder_t *b, const char *type);
} families[] = {{"llama", llama}, {"mistral", llama}, {"qwen2", llama}, {"qwen3", llama},      {"gpt2", gpt2},
                {"bert", bert},   {"roberta", bert},  {"opt", opt},     {"xlm-roberta", bert}, {"t5", t5}};
enum { N_FAMILIES = sizeof families / sizeof *families };

int model_read_config(const char *path, const json_t *config, model_t *model) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    static const char *const members[] = {"dtype", "torch_dtype"}; /* what transformers writes, and what it wrote */
    builder_t b = {.model = model, .config = config};
    char known[TEXT_NBYTES] = "";
    for (int i = 0; i < 2 && model->dtype == MODEL_ANY_DTYPE && !model->dtype_said; i++) {
        const char *said = json_string_value(json_object_get(config, members[i]));
        if (said && (model->dtype = model_dtype_of(said)) == MODEL_ANY_DTYPE)
            return zf_cli_complain(path, "\"%s\" is \"%.60s\": say --dtype bf16, f16 or f32", members[i], said);
        model->dtype_said = said ? members[i] : NULL;
    }
    for (size_t i = 0; i < N_FAMILIES; i++) {
        size_t n = strlen(known);
        if (strcmp(type, families[i].type) == 0) {
            families[i].build(&b, type);
            return b.status;
        }
        snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", families[i].type);
    }
    return zf_cli_complain(path,
                           "model_type \"%.60s\" is not known; known: %s. Give the model's safetensors file, or a list "
                           "of shapes",
                           type, known);
}
