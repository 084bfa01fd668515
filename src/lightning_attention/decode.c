/* The decode step: arguments, and how it is cut. */
#include "base/pool.h"
#include "lightning_attention/problem.h"

static const char op[] = "tigon_lightning_attention_decode";

/* Whole heads, unless that leaves too few units to share and a unit is large enough to be worth the hand-over. */
static void choose_rows(decode *d) {
  enum { ENOUGH_UNITS = 8, LEAST_FLOATS = 4096 };
  d->rows = d->v.shape[2];
  while (lightning_decode_units(d) < ENOUGH_UNITS && d->rows * d->q.shape[2] > LEAST_FLOATS && d->rows > 1)
    d->rows = (d->rows + 1) / 2;
}

static tigon_status prepare(const tigon_exec *exec, const tigon_lightning_attention_decode_args *args, bool query,
                            tigon_exec *e, decode *d) {
  tigon_lightning_attention_decode_args a;
  tigon_status status = tigon_exec_load(op, exec, TIGON_ON_CPU, e);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", args, &a, sizeof a);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  tigon_check_alone(&check, a.team, "", 0);
  d->q = tigon_check_tensor(&check, "q", a.q, TIGON_FLOATS, 0, 3, (int64_t[]){-1, -1, -1});
  const int64_t n = d->q.shape[0], heads = d->q.shape[1], key_size = d->q.shape[2];
  lightning_check_size(&check, "q", "a number of heads", heads, INT32_MAX);
  lightning_check_size(&check, "q", "a key size", key_size, MAX_SIZE);
  d->k = tigon_check_tensor(&check, "k", a.k, d->q.kind, 0, 3, d->q.shape);
  d->v = tigon_check_tensor(&check, "v", a.v, TIGON_FLOATS, 0, 3, (int64_t[]){n, -1, -1});
  const int64_t value_heads = d->v.shape[1], value_size = d->v.shape[2];
  lightning_check_value_heads(&check, heads, value_heads);
  lightning_check_size(&check, "v", "a value size", value_size, MAX_SIZE);
  d->decay = lightning_check_decay(&check, a.decay, heads, value_heads);
  d->slots.state_indices = lightning_check_vector(&check, "state_indices", a.state_indices, TIGON_INDICES, n);
  const int64_t states = tigon_present(&d->slots.state_indices) ? -1 : n;
  d->state = tigon_check_tensor(&check, "state", a.state, TIGON_F32, TIGON_OUTPUT, 4,
                                (int64_t[]){states, value_heads, value_size, key_size});
  d->slots.count = d->state.shape[0];
  d->out = tigon_check_tensor(&check, "out", a.out, TIGON_FLOATS, TIGON_OUTPUT, 3, d->v.shape);
  d->scale = lightning_check_scale(&check, a.scale);
  const struct {
    const char *name;
    const tigon_view *view;
  } inputs[] = {
      {"q", &d->q}, {"k", &d->k}, {"v", &d->v}, {"decay", &d->decay}, {"state_indices", &d->slots.state_indices}};
  for (int i = 0; i < 5; i++) {
    tigon_check_apart(&check, "state", &d->state, inputs[i].name, inputs[i].view);
    tigon_check_apart(&check, "out", &d->out, inputs[i].name, inputs[i].view);
  }
  tigon_check_apart(&check, "out", &d->out, "state", &d->state);
  if (check.status != TIGON_OK) return check.status;
  choose_rows(d);
  return TIGON_OK;
}

tigon_status tigon_lightning_attention_decode(const tigon_exec *exec,
                                              const tigon_lightning_attention_decode_args *args) {
  tigon_exec e;
  decode d = {0};
  const tigon_status status = prepare(exec, args, false, &e, &d);
  if (status != TIGON_OK) return status;
  lightning_note_decay(&d.decay, op, e.context);
  lightning_note_slots(&d.slots, op, e.context);
  tigon_parallel(e.num_threads, lightning_decode_units(&d), TIGON_ISA_PICK(tigon_lightning_decode_unit), &d);
  return TIGON_OK;
}

tigon_status tigon_lightning_attention_decode_workspace(const tigon_exec *exec,
                                                        const tigon_lightning_attention_decode_args *args,
                                                        uint64_t *bytes) {
  tigon_exec e;
  decode d = {0};
  const tigon_status status = prepare(exec, args, true, &e, &d);
  return status == TIGON_OK ? tigon_workspace_answer(op, 0, bytes) : status;
}
