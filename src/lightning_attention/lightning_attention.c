/* Prefill: arguments, workspace, and the scan that computes it (backend.h). */
#include "tigon/lightning_attention.h"

#include "lightning_attention/problem.h"

static const char op[] = "tigon_lightning_attention";

typedef struct plan {
  problem p;
  tigon_view out, final_state;
  scan scan;
  int64_t *bounds;
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
  s.state_transposed = true;
  s.outer = f->p.scale;
  s.dx = f->p.key_size;
  s.dz = f->p.value_size;
  lightning_scan_cut(&s, f->threads);
  s.scratch_bytes = lightning_scan_scratch(&s);
  return s;
}

static tigon_status prepare(const tigon_exec *exec, const tigon_lightning_attention_args *args, bool query, plan *f) {
  tigon_lightning_attention_args a;
  tigon_exec e;
  tigon_status status = tigon_exec_load(op, exec, &e);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", args, &a, sizeof a);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  problem *p = &f->p;
  lightning_check_inputs(&check, p, a.q, a.k, a.v, a.decay, a.cu_seqlens, a.initial_state, a.scale);
  f->out = tigon_check_tensor(&check, "out", a.out, TIGON_FLOATS, TIGON_OUTPUT, 4, p->v.shape);
  f->final_state = lightning_check_state(&check, p, "final_state", a.final_state, TIGON_OUTPUT);
  tigon_check_alone(&check, a.team, "", 0);
  lightning_check_output_apart(&check, p, "out", &f->out);
  lightning_check_output_apart(&check, p, "final_state", &f->final_state);
  tigon_check_apart(&check, "out", &f->out, "initial_state", &p->initial_state);
  tigon_check_apart(&check, "out", &f->out, "final_state", &f->final_state);
  lightning_check_same_strides(&check, "final_state", &f->final_state, "initial_state", &p->initial_state);
  if (check.status != TIGON_OK) return check.status;

  tigon_arena arena = {.base = query ? NULL : e.workspace};
  f->threads = e.num_threads;
  f->context = e.context;
  f->bounds = lightning_take_bounds(&arena, p);
  f->scan = forward_scan(f);
  f->scratch = tigon_arena_take(&arena, p->sequences ? f->scan.scratch_bytes * (uint64_t)f->threads : 0);
  f->bytes = arena.used;
  return query ? TIGON_OK : tigon_workspace_check(op, &e, f->bytes);
}

tigon_status tigon_lightning_attention(const tigon_exec *exec, const tigon_lightning_attention_args *args) {
  plan f = {0};
  const tigon_status status = prepare(exec, args, false, &f);
  if (status != TIGON_OK) return status;
  lightning_fill_bounds(&f.p, op, f.context, f.bounds);
  lightning_note_decay(&f.p.decay, op, f.context);
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
