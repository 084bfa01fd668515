/* States without outputs: arguments, workspace, and the scan that computes them (backend.h). */
#include "base/context.h"
#include "lightning_attention/problem.h"

static const char op[] = "tigon_lightning_attention_state";

typedef struct plan {
  problem p;
  scan scan;
  tigon_view lengths;
  int64_t *bounds;
  void *scratch;
  int threads;
  tigon_context *context;
  uint64_t bytes; /* of workspace */
} plan;

static scan state_scan(const plan *f, const tigon_view *final_state) {
  scan s = lightning_scan_of(&f->p, f->bounds);
  s.y = f->p.k;
  s.z = f->p.v;
  s.state_in = f->p.initial_state;
  s.state_out = *final_state;
  s.state_transposed = true;
  s.lengths = f->lengths;
  s.dx = f->p.key_size;
  s.dz = f->p.value_size;
  lightning_scan_cut(&s, f->threads);
  s.scratch_bytes = lightning_scan_scratch(&s);
  return s;
}

static tigon_status prepare(const tigon_exec *exec, const tigon_lightning_attention_state_args *args, bool query,
                            plan *f) {
  tigon_lightning_attention_state_args a;
  tigon_exec e;
  tigon_status status = tigon_exec_load(op, exec, TIGON_ON_CPU, &e);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", args, &a, sizeof a);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  problem *p = &f->p;
  lightning_check_inputs(&check, p, false, NULL, a.k, a.v, a.decay, a.cu_seqlens);
  f->lengths = lightning_check_vector(&check, "lengths", a.lengths, TIGON_INDICES, p->sequences);
  const tigon_view final_state =
      lightning_check_states(&check, p, a.state_indices, a.has_initial_state, a.initial_state, a.final_state, 0);
  tigon_check_apart(&check, "final_state", &final_state, "lengths", &f->lengths);
  tigon_check_alone(&check, a.team, "", 0);
  if (check.status != TIGON_OK) return check.status;

  tigon_arena arena = {.base = query ? NULL : e.workspace};
  f->threads = e.num_threads;
  f->context = e.context;
  f->bounds = lightning_take_bounds(&arena, &p->cu_seqlens);
  f->scan = state_scan(f, &final_state);
  f->scratch = tigon_arena_take(&arena, p->sequences ? f->scan.scratch_bytes * (uint64_t)f->threads : 0);
  f->bytes = arena.used;
  return query ? TIGON_OK : tigon_workspace_check(op, &e, f->bytes);
}

/* Notes the first length that its sequence does not have. */
static void note_lengths(const plan *f) {
  scan whole = f->scan;
  whole.lengths = (tigon_view){0};
  for (int64_t n = 0; tigon_present(&f->lengths) && n < whole.sequences; n++) {
    int64_t begin, length;
    lightning_scan_tokens(&whole, n, &begin, &length);
    const int64_t wanted = tigon_load_index(f->lengths.data, f->lengths.kind, n * f->lengths.stride[0]);
    if (wanted >= 0 && wanted <= length) continue;
    tigon_context_note(f->context, TIGON_INVALID_ARGUMENT, op, "lengths", n, wanted);
    return;
  }
}

tigon_status tigon_lightning_attention_state(const tigon_exec *exec, const tigon_lightning_attention_state_args *args) {
  plan f = {0};
  const tigon_status status = prepare(exec, args, false, &f);
  if (status != TIGON_OK) return status;
  lightning_fill_bounds(&f.p.cu_seqlens, "cu_seqlens", f.p.tokens, true, op, f.context, f.bounds);
  lightning_note_decay(&f.p.decay, op, f.context);
  lightning_note_slots(&f.p.slots, op, f.context);
  note_lengths(&f);
  lightning_scan_run(&f.scan, f.threads, f.scratch);
  return TIGON_OK;
}

tigon_status tigon_lightning_attention_state_workspace(const tigon_exec *exec,
                                                       const tigon_lightning_attention_state_args *args,
                                                       uint64_t *bytes) {
  plan f = {0};
  const tigon_status status = prepare(exec, args, true, &f);
  return status == TIGON_OK ? tigon_workspace_answer(op, f.bytes, bytes) : status;
}
