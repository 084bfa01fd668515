/* Prefill: arguments, workspace, and the scan that computes it (backend.h). */
#include "tigon/lightning_attention.h"

#include <inttypes.h>

#include "base/context.h"
#include "lightning_attention/problem.h"

static const char op[] = "tigon_lightning_attention";

typedef struct plan {
  problem p;
  float scale;
  tigon_view out, final_state, checkpoints, checkpoint_begin;
  int64_t checkpoint_every;
  scan scan;
  int64_t *bounds, *first_checkpoints;
  void *scratch;
  int threads;
  tigon_context *context;
  uint64_t bytes; /* of workspace */
} plan;

static scan forward_scan(const plan *f) {
  scan s = lightning_scan_of(&f->p, f->bounds);
  s.x = f->p.q;
  s.y = f->p.k;
  s.z = f->p.v;
  s.out = f->out;
  s.state_in = f->p.initial_state;
  s.state_out = f->final_state;
  s.checkpoints = f->checkpoints;
  s.checkpoint_begin = f->first_checkpoints;
  s.checkpoint_every = f->checkpoint_every;
  s.state_transposed = true;
  s.outer = f->scale;
  s.dx = f->p.key_size;
  s.dz = f->p.value_size;
  lightning_scan_cut(&s, f->threads);
  s.scratch_bytes = lightning_scan_scratch(&s);
  return s;
}

static void check_checkpoints(tigon_checker *check, plan *f, const tigon_lightning_attention_args *a) {
  const problem *p = &f->p;
  const int64_t every = f->checkpoint_every = a->checkpoint_every;
  f->checkpoints = tigon_check_tensor(check, "checkpoints", a->checkpoints, TIGON_F32, TIGON_OUTPUT | TIGON_OPTIONAL, 4,
                                      (int64_t[]){-1, p->value_heads, p->value_size, p->key_size});
  f->checkpoint_begin =
      lightning_check_vector(check, "checkpoint_begin", a->checkpoint_begin, TIGON_INDICES, p->sequences + 1);
  const bool wanted = tigon_present(&f->checkpoints);
  tigon_check_that(check, !wanted || (every > 0 && every % CHUNK == 0), "checkpoint_every",
                   "expected a positive multiple of %d, got %" PRId64, CHUNK, every);
  tigon_check_that(check, wanted || every == 0, "checkpoint_every", "expected 0 without checkpoints, got %" PRId64,
                   every);
  tigon_check_that(check, wanted || !tigon_present(&f->checkpoint_begin), "checkpoint_begin",
                   "expected NULL without checkpoints");
  tigon_check_that(check, !wanted || !tigon_present(&p->cu_seqlens) || tigon_present(&f->checkpoint_begin),
                   "checkpoint_begin", "expected a tensor for the checkpoints of packed sequences, got NULL");
  lightning_check_output_apart(check, p, "checkpoints", &f->checkpoints);
  tigon_check_apart(check, "checkpoints", &f->checkpoints, "checkpoint_begin", &f->checkpoint_begin);
  tigon_check_apart(check, "checkpoints", &f->checkpoints, "initial_state", &p->initial_state);
  tigon_check_apart(check, "checkpoints", &f->checkpoints, "final_state", &f->final_state);
  tigon_check_apart(check, "checkpoints", &f->checkpoints, "out", &f->out);
  tigon_check_apart(check, "out", &f->out, "checkpoint_begin", &f->checkpoint_begin);
  tigon_check_apart(check, "final_state", &f->final_state, "checkpoint_begin", &f->checkpoint_begin);
}

static tigon_status prepare(const tigon_exec *exec, const tigon_lightning_attention_args *args, bool query, plan *f) {
  tigon_lightning_attention_args a;
  tigon_exec e;
  tigon_status status = tigon_exec_load(op, exec, TIGON_ON_CPU, &e);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", args, &a, sizeof a);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  problem *p = &f->p;
  lightning_check_inputs(&check, p, true, a.q, a.k, a.v, a.decay, a.cu_seqlens);
  f->scale = lightning_check_scale(&check, a.scale);
  f->out = tigon_check_tensor(&check, "out", a.out, TIGON_FLOATS, TIGON_OUTPUT, 4, p->v.shape);
  f->final_state = lightning_check_states(&check, p, a.state_indices, a.has_initial_state, a.initial_state,
                                          a.final_state, TIGON_OPTIONAL);
  check_checkpoints(&check, f, &a);
  tigon_check_alone(&check, a.team, "", 0);
  lightning_check_output_apart(&check, p, "out", &f->out);
  tigon_check_apart(&check, "out", &f->out, "initial_state", &p->initial_state);
  tigon_check_apart(&check, "out", &f->out, "final_state", &f->final_state);
  if (check.status != TIGON_OK) return check.status;

  tigon_arena arena = {.base = query ? NULL : e.workspace};
  f->threads = e.num_threads;
  f->context = e.context;
  f->bounds = lightning_take_bounds(&arena, &p->cu_seqlens);
  f->first_checkpoints = lightning_take_bounds(&arena, &f->checkpoint_begin);
  f->scan = forward_scan(f);
  f->scratch = tigon_arena_take(&arena, p->sequences ? f->scan.scratch_bytes * (uint64_t)f->threads : 0);
  f->bytes = arena.used;
  return query ? TIGON_OK : tigon_workspace_check(op, &e, f->bytes);
}

/* Notes the first sequence whose checkpoints do not all fit. */
static void note_checkpoints(const plan *f) {
  const scan *s = &f->scan;
  for (int64_t n = 0; n < s->sequences && s->tokens > 0 && tigon_present(&s->checkpoints); n++) {
    int64_t token, length, begin, end;
    lightning_scan_tokens(s, n, &token, &length);
    lightning_checkpoint_rows(s, n, &begin, &end);
    const int64_t wanted = length / s->checkpoint_every;
    if (wanted == 0 || lightning_slot(&s->slots, n) < 0 || wanted <= end - begin) continue;
    tigon_context_note(f->context, TIGON_INVALID_ARGUMENT, op, "checkpoints", n, wanted);
    return;
  }
}

tigon_status tigon_lightning_attention(const tigon_exec *exec, const tigon_lightning_attention_args *args) {
  plan f = {0};
  const tigon_status status = prepare(exec, args, false, &f);
  if (status != TIGON_OK) return status;
  lightning_fill_bounds(&f.p.cu_seqlens, "cu_seqlens", f.p.tokens, true, op, f.context, f.bounds);
  lightning_note_decay(&f.p.decay, op, f.context);
  lightning_note_slots(&f.p.slots, op, f.context);
  lightning_fill_bounds(&f.checkpoint_begin, "checkpoint_begin", f.checkpoints.shape[0], false, op, f.context,
                        f.first_checkpoints);
  note_checkpoints(&f);
  lightning_zero_outside(&f.p, f.bounds, f.threads, &f.out);
  lightning_scan_run(&f.scan, f.threads, f.scratch);
  return TIGON_OK;
}

tigon_status tigon_lightning_attention_workspace(const tigon_exec *exec, const tigon_lightning_attention_args *args,
                                                 uint64_t *bytes) {
  plan f = {0};
  const tigon_status status = prepare(exec, args, true, &f);
  return status == TIGON_OK ? tigon_workspace_answer(op, f.bytes, bytes) : status;
}
