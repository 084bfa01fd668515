/* The operations as TVM FFI functions: `tigon_<op>`, and `tigon_<op>_saved` where the C ABI has it. */
#include "ffi/marshal.h"

#define EXPORT __attribute__((visibility("default")))

/* OPERATION(op, runs without workspace first, codes, names): see marshal.h. */
#define OPERATION(operation, without, letters, members)                                                        \
  static tigon_status run_##operation(const tigon_exec *exec, const void *args) {                              \
    return tigon_##operation(exec, args);                                                                      \
  }                                                                                                            \
  static tigon_status workspace_##operation(const tigon_exec *exec, const void *args, uint64_t *bytes) {       \
    return tigon_##operation##_workspace(exec, args, bytes);                                                   \
  }                                                                                                            \
  static const ffi_operation table_##operation = {.op = "tigon_" #operation,                                   \
                                                  .codes = letters,                                            \
                                                  .names = members,                                            \
                                                  .size = sizeof(tigon_##operation##_args),                    \
                                                  .try_without = without,                                      \
                                                  .run = run_##operation,                                      \
                                                  .workspace = workspace_##operation};                         \
  EXPORT int __tvm_ffi_tigon_##operation(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result); \
  int __tvm_ffi_tigon_##operation(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {       \
    (void)self, (void)result;                                                                                  \
    return ffi_call(&table_##operation, args, count);                                                          \
  }

#define SAVED(operation)                                                                                               \
  static tigon_status saved_##operation(const tigon_exec *exec, const void *args, uint64_t *bytes) {                   \
    return tigon_##operation##_saved(exec, args, bytes);                                                               \
  }                                                                                                                    \
  EXPORT int __tvm_ffi_tigon_##operation##_saved(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result); \
  int __tvm_ffi_tigon_##operation##_saved(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {       \
    (void)self;                                                                                                        \
    return ffi_query(&table_##operation, args, count, result, saved_##operation);                                      \
  }

OPERATION(rms_norm, true, "irrtrrvff", "casting x residual weight out residual_out rstd eps offset")
OPERATION(rms_norm_backward, false, "irrrtvrrtdif",
          "casting dy d_residual_out x weight rstd dx d_residual d_weight x_dtype accumulate_d_weight offset")

OPERATION(linear, false, "tttt", "x weight bias y")
OPERATION(linear_backward, false, "iitttttt", "accumulate_dx accumulate_dweight dy x weight dx dweight dbias")

OPERATION(
    linear_cross_entropy, false, "ittttttttllnfffftttttls",
    "set_ignore_index x weight bias target loss nll lse entropy ignore_index vocab_begin inverse_temperature z_loss "
    "softcap label_smoothing class_weight token_weight argmax correct partial vocab_size saved")
SAVED(linear_cross_entropy)
OPERATION(linear_cross_entropy_merge, false, "itttttttttttllff",
          "set_ignore_index partials target class_weight token_weight merged loss nll lse entropy argmax correct "
          "ignore_index vocab_size z_loss label_smoothing")
OPERATION(linear_cross_entropy_backward, false, "ittttttttttttllnffffttlizs",
          "set_ignore_index x weight bias target lse entropy d_loss d_lse d_entropy dx dweight dbias ignore_index "
          "vocab_begin inverse_temperature z_loss softcap label_smoothing class_weight token_weight vocab_size "
          "accumulate_weight_gradients saved")

OPERATION(lightning_attention, false, "fttttttttnttttl",
          "scale q k v decay cu_seqlens initial_state out final_state state_indices has_initial_state checkpoints "
          "checkpoint_begin checkpoint_every")
OPERATION(lightning_attention_backward, false, "fttttttttttttntt",
          "scale dout q k v decay cu_seqlens initial_state d_final_state dq dk dv d_initial_state state_indices "
          "has_initial_state")
OPERATION(lightning_attention_decode, true, "fttttttnt", "scale q k v decay state out state_indices")
OPERATION(lightning_attention_state, false, "tttttttttn",
          "k v decay cu_seqlens lengths initial_state state_indices has_initial_state final_state")
OPERATION(lightning_attention_merge, true, "tttttn", "left right decay lengths out")

OPERATION(
    moe, false, "ttttttttslniil",
    "x topk_ids topk_weights gate up gate_up down out saved expert_begin weight_layout weights_on_input row_limit")
SAVED(moe)
OPERATION(
    moe_backward, false, "ittttttttsttttttlniil",
    "accumulate_weight_gradients dout x topk_ids topk_weights gate up gate_up down saved dx d_topk_weights d_gate "
    "d_up d_gate_up d_down expert_begin weight_layout weights_on_input row_limit")
OPERATION(
    moe_route, false, "iitttttntiiift",
    "score renormalize logits topk_ids topk_weights counts balance_loss selection_bias n_group topk_group group_top "
    "routed_scale z_loss")
OPERATION(moe_route_backward, false, "iitttttntfz",
          "score renormalize logits topk_ids d_topk_weights d_balance_loss d_logits d_z_loss routed_scale")
