/*
 * The operations as fuzz_args.c calls them: the members of every args struct with their shapes. A member that is
 * missing here fails check_tables().
 *
 * A shape is one letter an extent, drawn for each call; digits stand for themselves. Some letters follow from others:
 *     n  heads of a row: there or not     W  value heads, a multiple of H     U  H or W      P  N + 1
 *     S  slots of a state pool, or N      C  classes of all shards            A  choices a token
 *     x y X Y  I, D, 2I and D in the order that the weights' layout has
 */
#ifndef TIGON_TESTS_FUZZ_ARGS_OPS_H
#define TIGON_TESTS_FUZZ_ARGS_OPS_H

#include <stddef.h>
#include <tigon/tigon.h>

typedef enum member_type { INPUT, OUTPUT, INT32, INT64, REAL, BLOCK, BLOCK_BYTES, TEAM, DTYPE } member_type;

enum { F32 = 1, F16 = 2, BF16 = 4, I32 = 8, I64 = 16, U8 = 32, FLOATS = 7, INDICES = 24, FLAGS = 56 };

/* When a tensor is given. */
typedef enum presence { ALWAYS, MAYBE, IF_PACKED, IF_POOL, IF_PAIR, IF_JOINED, IF_CHECKPOINTS, IF_RAGGED } presence;

typedef struct member {
  const char *name;
  size_t offset, bytes;
  member_type type;
  const char *shape; /* of a number: the letter whose extent it mostly is, or NULL; of a block: its elements */
  unsigned kinds;    /* of a block: 0 for x's dtype */
  presence given;
} member;

typedef struct operation {
  const char *name;
  size_t bytes;
  tigon_status (*run)(const tigon_exec *exec, const void *args);
  tigon_status (*workspace)(const tigon_exec *exec, const void *args, uint64_t *bytes);
  tigon_status (*saved)(const tigon_exec *exec, const void *args, uint64_t *bytes); /* or NULL */
  const member *members;
  int count;
} operation;

#define MEMBER(name, ...) \
  { #name, offsetof(ARGS, name), sizeof((ARGS *)0)->name, __VA_ARGS__ }

/* Functions of one type each, and the row of the table. */
#define CALLS(op)                                                                                           \
  static tigon_status run_##op(const tigon_exec *exec, const void *args) { return tigon_##op(exec, args); } \
  static tigon_status workspace_##op(const tigon_exec *exec, const void *args, uint64_t *bytes) {           \
    return tigon_##op##_workspace(exec, args, bytes);                                                       \
  }
#define ROW(op, saved)                                                                      \
  {                                                                                         \
    "tigon_" #op, sizeof(tigon_##op##_args), run_##op, workspace_##op, saved, op##_members, \
        sizeof op##_members / sizeof *op##_members                                          \
  }

#define ARGS tigon_rms_norm_args
static const member rms_norm_members[] = {
    MEMBER(casting, INT32, NULL, 0, ALWAYS),         MEMBER(x, INPUT, "MnH", FLOATS, ALWAYS),
    MEMBER(residual, INPUT, "MnH", FLOATS, IF_PAIR), MEMBER(weight, INPUT, "H", FLOATS, MAYBE),
    MEMBER(out, OUTPUT, "MnH", FLOATS, ALWAYS),      MEMBER(residual_out, OUTPUT, "MnH", FLOATS, IF_PAIR),
    MEMBER(rstd, OUTPUT, "Mn", F32, MAYBE),          MEMBER(eps, REAL, NULL, 0, ALWAYS),
    MEMBER(offset, REAL, NULL, 0, ALWAYS),
};
#undef ARGS
#define ARGS tigon_rms_norm_backward_args
static const member rms_norm_backward_members[] = {
    MEMBER(casting, INT32, NULL, 0, ALWAYS),
    MEMBER(dy, INPUT, "MnH", FLOATS, MAYBE),
    MEMBER(d_residual_out, INPUT, "MnH", FLOATS, MAYBE),
    MEMBER(x, INPUT, "MnH", FLOATS, ALWAYS),
    MEMBER(weight, INPUT, "H", FLOATS, MAYBE),
    MEMBER(rstd, INPUT, "Mn", F32, ALWAYS),
    MEMBER(dx, OUTPUT, "MnH", FLOATS, MAYBE),
    MEMBER(d_residual, OUTPUT, "MnH", FLOATS, MAYBE),
    MEMBER(d_weight, OUTPUT, "H", FLOATS, MAYBE),
    MEMBER(x_dtype, DTYPE, NULL, 0, ALWAYS),
    MEMBER(accumulate_d_weight, INT32, NULL, 0, ALWAYS),
    MEMBER(offset, REAL, NULL, 0, ALWAYS),
};
#undef ARGS
#define ARGS tigon_linear_args
static const member linear_members[] = {
    MEMBER(x, INPUT, "TD", FLOATS, ALWAYS),
    MEMBER(weight, INPUT, "ND", FLOATS, ALWAYS),
    MEMBER(bias, INPUT, "N", FLOATS, MAYBE),
    MEMBER(y, OUTPUT, "TN", FLOATS, ALWAYS),
};
#undef ARGS
#define ARGS tigon_linear_backward_args
static const member linear_backward_members[] = {
    MEMBER(accumulate_dx, INT32, NULL, 0, ALWAYS), MEMBER(accumulate_dweight, INT32, NULL, 0, ALWAYS),
    MEMBER(dy, INPUT, "TN", FLOATS, ALWAYS),       MEMBER(x, INPUT, "TD", FLOATS, ALWAYS),
    MEMBER(weight, INPUT, "ND", FLOATS, ALWAYS),   MEMBER(dx, OUTPUT, "TD", FLOATS, MAYBE),
    MEMBER(dweight, OUTPUT, "ND", FLOATS, MAYBE),  MEMBER(dbias, OUTPUT, "N", FLOATS, MAYBE),
};
#undef ARGS
#define ARGS tigon_linear_cross_entropy_args
static const member linear_cross_entropy_members[] = {
    MEMBER(set_ignore_index, INT32, NULL, 0, ALWAYS),
    MEMBER(x, INPUT, "TD", FLOATS, ALWAYS),
    MEMBER(weight, INPUT, "VD", FLOATS, ALWAYS),
    MEMBER(bias, INPUT, "V", FLOATS, MAYBE),
    MEMBER(target, INPUT, "T", INDICES, ALWAYS),
    MEMBER(loss, OUTPUT, "T", F32, IF_PAIR),
    MEMBER(nll, OUTPUT, "T", F32, IF_PAIR),
    MEMBER(lse, OUTPUT, "T", F32, IF_PAIR),
    MEMBER(entropy, OUTPUT, "T", F32, IF_PAIR),
    MEMBER(ignore_index, INT64, NULL, 0, ALWAYS),
    MEMBER(vocab_begin, INT64, "b", 0, ALWAYS),
    MEMBER(team, TEAM, NULL, 0, ALWAYS),
    MEMBER(inverse_temperature, REAL, NULL, 0, ALWAYS),
    MEMBER(z_loss, REAL, NULL, 0, ALWAYS),
    MEMBER(softcap, REAL, NULL, 0, ALWAYS),
    MEMBER(label_smoothing, REAL, NULL, 0, ALWAYS),
    MEMBER(class_weight, INPUT, "C", F32, MAYBE),
    MEMBER(token_weight, INPUT, "T", F32, MAYBE),
    MEMBER(argmax, OUTPUT, "T", INDICES, IF_PAIR),
    MEMBER(correct, OUTPUT, "T", F32, IF_PAIR),
    MEMBER(partial, OUTPUT, "T8", F32, MAYBE),
    MEMBER(vocab_size, INT64, "C", 0, ALWAYS),
    MEMBER(saved, BLOCK, "TV", F32, ALWAYS),
    MEMBER(saved_bytes, BLOCK_BYTES, NULL, 0, ALWAYS),
};
#undef ARGS
#define ARGS tigon_linear_cross_entropy_merge_args
static const member linear_cross_entropy_merge_members[] = {
    MEMBER(set_ignore_index, INT32, NULL, 0, ALWAYS),
    MEMBER(partials, INPUT, "NT8", F32, ALWAYS),
    MEMBER(target, INPUT, "T", INDICES, ALWAYS),
    MEMBER(class_weight, INPUT, "C", F32, MAYBE),
    MEMBER(token_weight, INPUT, "T", F32, MAYBE),
    MEMBER(merged, OUTPUT, "T8", F32, MAYBE),
    MEMBER(loss, OUTPUT, "T", F32, MAYBE),
    MEMBER(nll, OUTPUT, "T", F32, MAYBE),
    MEMBER(lse, OUTPUT, "T", F32, MAYBE),
    MEMBER(entropy, OUTPUT, "T", F32, MAYBE),
    MEMBER(argmax, OUTPUT, "T", INDICES, MAYBE),
    MEMBER(correct, OUTPUT, "T", F32, MAYBE),
    MEMBER(ignore_index, INT64, NULL, 0, ALWAYS),
    MEMBER(vocab_size, INT64, "C", 0, ALWAYS),
    MEMBER(z_loss, REAL, NULL, 0, ALWAYS),
    MEMBER(label_smoothing, REAL, NULL, 0, ALWAYS),
};
#undef ARGS
#define ARGS tigon_linear_cross_entropy_backward_args
static const member linear_cross_entropy_backward_members[] = {
    MEMBER(set_ignore_index, INT32, NULL, 0, ALWAYS),
    MEMBER(x, INPUT, "TD", FLOATS, ALWAYS),
    MEMBER(weight, INPUT, "VD", FLOATS, ALWAYS),
    MEMBER(bias, INPUT, "V", FLOATS, MAYBE),
    MEMBER(target, INPUT, "T", INDICES, ALWAYS),
    MEMBER(lse, INPUT, "T", F32, ALWAYS),
    MEMBER(entropy, INPUT, "T", F32, IF_PAIR),
    MEMBER(d_loss, INPUT, "T", F32, MAYBE),
    MEMBER(d_lse, INPUT, "T", F32, MAYBE),
    MEMBER(d_entropy, INPUT, "T", F32, IF_PAIR),
    MEMBER(dx, OUTPUT, "TD", FLOATS, MAYBE),
    MEMBER(dweight, OUTPUT, "VD", FLOATS, MAYBE),
    MEMBER(dbias, OUTPUT, "V", FLOATS, MAYBE),
    MEMBER(ignore_index, INT64, NULL, 0, ALWAYS),
    MEMBER(vocab_begin, INT64, "b", 0, ALWAYS),
    MEMBER(team, TEAM, NULL, 0, ALWAYS),
    MEMBER(inverse_temperature, REAL, NULL, 0, ALWAYS),
    MEMBER(z_loss, REAL, NULL, 0, ALWAYS),
    MEMBER(softcap, REAL, NULL, 0, ALWAYS),
    MEMBER(label_smoothing, REAL, NULL, 0, ALWAYS),
    MEMBER(class_weight, INPUT, "C", F32, MAYBE),
    MEMBER(token_weight, INPUT, "T", F32, MAYBE),
    MEMBER(vocab_size, INT64, "C", 0, ALWAYS),
    MEMBER(accumulate_weight_gradients, INT32, NULL, 0, ALWAYS),
    MEMBER(reserved, INT32, "0", 0, ALWAYS),
    MEMBER(saved, BLOCK, "TV", F32, ALWAYS),
    MEMBER(saved_bytes, BLOCK_BYTES, NULL, 0, ALWAYS),
};
#undef ARGS
#define ARGS tigon_lightning_attention_args
static const member lightning_attention_members[] = {
    MEMBER(scale, REAL, NULL, 0, ALWAYS),
    MEMBER(q, INPUT, "BTHK", FLOATS, ALWAYS),
    MEMBER(k, INPUT, "BTHK", FLOATS, ALWAYS),
    MEMBER(v, INPUT, "BTWV", FLOATS, ALWAYS),
    MEMBER(decay, INPUT, "U", F32, ALWAYS),
    MEMBER(cu_seqlens, INPUT, "P", INDICES, IF_PACKED),
    MEMBER(initial_state, INPUT, "SWVK", F32, MAYBE),
    MEMBER(out, OUTPUT, "BTWV", FLOATS, ALWAYS),
    MEMBER(final_state, OUTPUT, "SWVK", F32, MAYBE),
    MEMBER(team, TEAM, NULL, 0, ALWAYS),
    MEMBER(state_indices, INPUT, "N", INDICES, IF_POOL),
    MEMBER(has_initial_state, INPUT, "N", FLAGS, MAYBE),
    MEMBER(checkpoints, OUTPUT, "QWVK", F32, IF_CHECKPOINTS),
    MEMBER(checkpoint_begin, INPUT, "P", INDICES, IF_RAGGED),
    MEMBER(checkpoint_every, INT64, "e", 0, ALWAYS),
};
#undef ARGS
#define ARGS tigon_lightning_attention_backward_args
static const member lightning_attention_backward_members[] = {
    MEMBER(scale, REAL, NULL, 0, ALWAYS),
    MEMBER(dout, INPUT, "BTWV", FLOATS, ALWAYS),
    MEMBER(q, INPUT, "BTHK", FLOATS, ALWAYS),
    MEMBER(k, INPUT, "BTHK", FLOATS, ALWAYS),
    MEMBER(v, INPUT, "BTWV", FLOATS, ALWAYS),
    MEMBER(decay, INPUT, "U", F32, ALWAYS),
    MEMBER(cu_seqlens, INPUT, "P", INDICES, IF_PACKED),
    MEMBER(initial_state, INPUT, "NWVK", F32, MAYBE),
    MEMBER(d_final_state, INPUT, "NWVK", F32, MAYBE),
    MEMBER(dq, OUTPUT, "BTHK", FLOATS, MAYBE),
    MEMBER(dk, OUTPUT, "BTHK", FLOATS, MAYBE),
    MEMBER(dv, OUTPUT, "BTWV", FLOATS, MAYBE),
    MEMBER(d_initial_state, OUTPUT, "NWVK", F32, MAYBE),
    MEMBER(team, TEAM, NULL, 0, ALWAYS),
    MEMBER(state_indices, INPUT, "N", INDICES, IF_POOL),
    MEMBER(has_initial_state, INPUT, "N", FLAGS, IF_POOL),
};
#undef ARGS
#define ARGS tigon_lightning_attention_decode_args
static const member lightning_attention_decode_members[] = {
    MEMBER(scale, REAL, NULL, 0, ALWAYS),
    MEMBER(q, INPUT, "NHK", FLOATS, ALWAYS),
    MEMBER(k, INPUT, "NHK", FLOATS, ALWAYS),
    MEMBER(v, INPUT, "NWV", FLOATS, ALWAYS),
    MEMBER(decay, INPUT, "U", F32, ALWAYS),
    MEMBER(state, OUTPUT, "SWVK", F32, ALWAYS),
    MEMBER(out, OUTPUT, "NWV", FLOATS, ALWAYS),
    MEMBER(team, TEAM, NULL, 0, ALWAYS),
    MEMBER(state_indices, INPUT, "N", INDICES, IF_POOL),
};
#undef ARGS
#define ARGS tigon_lightning_attention_state_args
static const member lightning_attention_state_members[] = {
    MEMBER(k, INPUT, "BTHK", FLOATS, ALWAYS),
    MEMBER(v, INPUT, "BTWV", FLOATS, ALWAYS),
    MEMBER(decay, INPUT, "U", F32, ALWAYS),
    MEMBER(cu_seqlens, INPUT, "P", INDICES, IF_PACKED),
    MEMBER(lengths, INPUT, "N", INDICES, MAYBE),
    MEMBER(initial_state, INPUT, "SWVK", F32, MAYBE),
    MEMBER(state_indices, INPUT, "N", INDICES, IF_POOL),
    MEMBER(has_initial_state, INPUT, "N", FLAGS, MAYBE),
    MEMBER(final_state, OUTPUT, "SWVK", F32, ALWAYS),
    MEMBER(team, TEAM, NULL, 0, ALWAYS),
};
#undef ARGS
#define ARGS tigon_lightning_attention_merge_args
static const member lightning_attention_merge_members[] = {
    MEMBER(left, INPUT, "NWVK", F32, ALWAYS), MEMBER(right, INPUT, "NWVK", F32, ALWAYS),
    MEMBER(decay, INPUT, "U", F32, ALWAYS),   MEMBER(lengths, INPUT, "N", INDICES, ALWAYS),
    MEMBER(out, OUTPUT, "NWVK", F32, ALWAYS), MEMBER(team, TEAM, NULL, 0, ALWAYS),
};
#undef ARGS
#define ARGS tigon_moe_args
static const member moe_members[] = {
    MEMBER(x, INPUT, "TD", FLOATS, ALWAYS),
    MEMBER(topk_ids, INPUT, "TA", INDICES, ALWAYS),
    MEMBER(topk_weights, INPUT, "TA", FLOATS, ALWAYS),
    MEMBER(gate, INPUT, "Exy", FLOATS, IF_PAIR),
    MEMBER(up, INPUT, "Exy", FLOATS, IF_PAIR),
    MEMBER(gate_up, INPUT, "EXY", FLOATS, IF_JOINED),
    MEMBER(down, INPUT, "Eyx", FLOATS, ALWAYS),
    MEMBER(out, OUTPUT, "TD", FLOATS, ALWAYS),
    MEMBER(saved, BLOCK, "2ITA", 0, ALWAYS),
    MEMBER(saved_bytes, BLOCK_BYTES, NULL, 0, ALWAYS),
    MEMBER(expert_begin, INT64, "0", 0, ALWAYS),
    MEMBER(team, TEAM, NULL, 0, ALWAYS),
    MEMBER(weight_layout, INT32, "l", 0, ALWAYS),
    MEMBER(weights_on_input, INT32, NULL, 0, ALWAYS),
    MEMBER(row_limit, INT64, NULL, 0, ALWAYS),
};
#undef ARGS
#define ARGS tigon_moe_backward_args
static const member moe_backward_members[] = {
    MEMBER(accumulate_weight_gradients, INT32, NULL, 0, ALWAYS),
    MEMBER(dout, INPUT, "TD", FLOATS, ALWAYS),
    MEMBER(x, INPUT, "TD", FLOATS, ALWAYS),
    MEMBER(topk_ids, INPUT, "TA", INDICES, ALWAYS),
    MEMBER(topk_weights, INPUT, "TA", FLOATS, ALWAYS),
    MEMBER(gate, INPUT, "Exy", FLOATS, IF_PAIR),
    MEMBER(up, INPUT, "Exy", FLOATS, IF_PAIR),
    MEMBER(gate_up, INPUT, "EXY", FLOATS, IF_JOINED),
    MEMBER(down, INPUT, "Eyx", FLOATS, ALWAYS),
    MEMBER(saved, BLOCK, "2ITA", 0, ALWAYS),
    MEMBER(saved_bytes, BLOCK_BYTES, NULL, 0, ALWAYS),
    MEMBER(dx, OUTPUT, "TD", FLOATS, MAYBE),
    MEMBER(d_topk_weights, OUTPUT, "TA", FLOATS, MAYBE),
    MEMBER(d_gate, OUTPUT, "Exy", FLOATS, IF_PAIR),
    MEMBER(d_up, OUTPUT, "Exy", FLOATS, IF_PAIR),
    MEMBER(d_gate_up, OUTPUT, "EXY", FLOATS, IF_JOINED),
    MEMBER(d_down, OUTPUT, "Eyx", FLOATS, MAYBE),
    MEMBER(expert_begin, INT64, "0", 0, ALWAYS),
    MEMBER(team, TEAM, NULL, 0, ALWAYS),
    MEMBER(weight_layout, INT32, "l", 0, ALWAYS),
    MEMBER(weights_on_input, INT32, NULL, 0, ALWAYS),
    MEMBER(row_limit, INT64, NULL, 0, ALWAYS),
};
#undef ARGS
#define ARGS tigon_moe_route_args
static const member moe_route_members[] = {
    MEMBER(score, INT32, NULL, 0, ALWAYS),           MEMBER(renormalize, INT32, NULL, 0, ALWAYS),
    MEMBER(logits, INPUT, "TE", FLOATS, ALWAYS),     MEMBER(topk_ids, OUTPUT, "TA", INDICES, ALWAYS),
    MEMBER(topk_weights, OUTPUT, "TA", F32, ALWAYS), MEMBER(counts, OUTPUT, "E", INDICES, MAYBE),
    MEMBER(balance_loss, OUTPUT, "1", F32, MAYBE),   MEMBER(team, TEAM, NULL, 0, ALWAYS),
    MEMBER(selection_bias, INPUT, "E", F32, MAYBE),  MEMBER(n_group, INT32, "g", 0, ALWAYS),
    MEMBER(topk_group, INT32, "g", 0, ALWAYS),       MEMBER(group_top, INT32, NULL, 0, ALWAYS),
    MEMBER(routed_scale, REAL, NULL, 0, ALWAYS),     MEMBER(z_loss, OUTPUT, "1", F32, MAYBE),
};
#undef ARGS
#define ARGS tigon_moe_route_backward_args
static const member moe_route_backward_members[] = {
    MEMBER(score, INT32, NULL, 0, ALWAYS),           MEMBER(renormalize, INT32, NULL, 0, ALWAYS),
    MEMBER(logits, INPUT, "TE", FLOATS, ALWAYS),     MEMBER(topk_ids, INPUT, "TA", INDICES, ALWAYS),
    MEMBER(d_topk_weights, INPUT, "TA", F32, MAYBE), MEMBER(d_balance_loss, INPUT, "1", F32, MAYBE),
    MEMBER(d_logits, OUTPUT, "TE", FLOATS, ALWAYS),  MEMBER(team, TEAM, NULL, 0, ALWAYS),
    MEMBER(d_z_loss, INPUT, "1", F32, MAYBE),        MEMBER(routed_scale, REAL, NULL, 0, ALWAYS),
    MEMBER(reserved, INT32, "0", 0, ALWAYS),
};
#undef ARGS

CALLS(rms_norm)
CALLS(rms_norm_backward)
CALLS(linear)
CALLS(linear_backward)
CALLS(linear_cross_entropy)
CALLS(linear_cross_entropy_merge)
CALLS(linear_cross_entropy_backward)
CALLS(lightning_attention)
CALLS(lightning_attention_backward)
CALLS(lightning_attention_decode)
CALLS(lightning_attention_state)
CALLS(lightning_attention_merge)
CALLS(moe)
CALLS(moe_backward)
CALLS(moe_route)
CALLS(moe_route_backward)

static tigon_status saved_linear_cross_entropy(const tigon_exec *exec, const void *args, uint64_t *bytes) {
  return tigon_linear_cross_entropy_saved(exec, args, bytes);
}

static tigon_status saved_moe(const tigon_exec *exec, const void *args, uint64_t *bytes) {
  return tigon_moe_saved(exec, args, bytes);
}

static const operation operations[] = {
    ROW(rms_norm, NULL),
    ROW(rms_norm_backward, NULL),
    ROW(linear, NULL),
    ROW(linear_backward, NULL),
    ROW(linear_cross_entropy, saved_linear_cross_entropy),
    ROW(linear_cross_entropy_merge, NULL),
    ROW(linear_cross_entropy_backward, NULL),
    ROW(lightning_attention, NULL),
    ROW(lightning_attention_backward, NULL),
    ROW(lightning_attention_decode, NULL),
    ROW(lightning_attention_state, NULL),
    ROW(lightning_attention_merge, NULL),
    ROW(moe, saved_moe),
    ROW(moe_backward, NULL),
    ROW(moe_route, NULL),
    ROW(moe_route_backward, NULL),
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

#endif
