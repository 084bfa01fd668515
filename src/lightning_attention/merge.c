/* Joining the states of two parts of a sequence: arguments. */
#include "base/context.h"
#include "base/pool.h"
#include "lightning_attention/problem.h"

static const char op[] = "tigon_lightning_attention_merge";

static tigon_status prepare(const tigon_exec *exec, const tigon_lightning_attention_merge_args *args, bool query,
                            tigon_exec *e, merge *m) {
  tigon_lightning_attention_merge_args a;
  tigon_status status = tigon_exec_load(op, exec, TIGON_ON_CPU, e);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", args, &a, sizeof a);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  m->left = tigon_check_tensor(&check, "left", a.left, TIGON_F32, 0, 4, (int64_t[]){-1, -1, -1, -1});
  const int64_t value_heads = m->left.shape[1];
  lightning_check_size(&check, "left", "a number of value heads", value_heads, INT32_MAX);
  lightning_check_size(&check, "left", "a value size", m->left.shape[2], MAX_SIZE);
  lightning_check_size(&check, "left", "a key size", m->left.shape[3], MAX_SIZE);
  m->right = tigon_check_tensor(&check, "right", a.right, TIGON_F32, 0, 4, m->left.shape);
  m->decay = tigon_check_tensor(&check, "decay", a.decay, TIGON_F32, TIGON_ANY_STRIDE, 1, (int64_t[]){-1});
  const int64_t decays = m->decay.shape[0];
  if (check.status == TIGON_OK)
    tigon_check_that(&check, decays >= 1 && value_heads % decays == 0, "decay",
                     "expected a divisor of the %lld value heads as its number of elements, got %lld",
                     (long long)value_heads, (long long)decays);
  m->lengths = tigon_check_tensor(&check, "lengths", a.lengths, TIGON_INDICES, TIGON_ANY_STRIDE, 1, m->left.shape);
  m->out = tigon_check_tensor(&check, "out", a.out, TIGON_F32, TIGON_OUTPUT, 4, m->left.shape);
  tigon_check_same_or_apart(&check, "out", &m->out, "left", &m->left);
  tigon_check_same_or_apart(&check, "out", &m->out, "right", &m->right);
  tigon_check_apart(&check, "out", &m->out, "decay", &m->decay);
  tigon_check_apart(&check, "out", &m->out, "lengths", &m->lengths);
  tigon_check_alone(&check, a.team, "", 0);
  return check.status;
}

static void note_lengths(const merge *m, tigon_context *context) {
  for (int64_t n = 0; n < m->lengths.shape[0]; n++) {
    const int64_t length = tigon_load_index(m->lengths.data, m->lengths.kind, n * m->lengths.stride[0]);
    if (length >= 0) continue;
    tigon_context_note(context, TIGON_INVALID_ARGUMENT, op, "lengths", n, length);
    return;
  }
}

tigon_status tigon_lightning_attention_merge(const tigon_exec *exec, const tigon_lightning_attention_merge_args *args) {
  tigon_exec e;
  merge m = {0};
  const tigon_status status = prepare(exec, args, false, &e, &m);
  if (status != TIGON_OK) return status;
  lightning_note_decay(&m.decay, op, e.context);
  note_lengths(&m, e.context);
  tigon_parallel(e.num_threads, m.out.shape[0] * m.out.shape[1], TIGON_ISA_PICK(tigon_lightning_merge_unit), &m);
  return TIGON_OK;
}

tigon_status tigon_lightning_attention_merge_workspace(const tigon_exec *exec,
                                                       const tigon_lightning_attention_merge_args *args,
                                                       uint64_t *bytes) {
  tigon_exec e;
  merge m = {0};
  const tigon_status status = prepare(exec, args, true, &e, &m);
  return status == TIGON_OK ? tigon_workspace_answer(op, 0, bytes) : status;
}
