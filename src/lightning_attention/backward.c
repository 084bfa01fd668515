/* Gradients: arguments, workspace, and the three scans that compute them (backend.h). */
#include "base/status.h"
#include "lightning_attention/problem.h"

static const char op[] = "tigon_lightning_attention_backward";

typedef struct plan {
  problem p;
  float scale;
  tigon_view dout, d_final_state;
  tigon_view dq, dk, dv, d_initial_state;
  scan scans[3];
  int count;
  int64_t *bounds;
  void *scratch;
  int threads;
  tigon_context *context;
  uint64_t bytes; /* of workspace */
} plan;

static void add_scan(plan *g, scan s) {
  lightning_scan_cut(&s, g->threads);
  s.scratch_bytes = lightning_scan_scratch(&s);
  g->scans[g->count++] = s;
}

static void add_dq(plan *g) {
  const problem *p = &g->p;
  scan s = lightning_scan_of(p, g->bounds);
  s.x = g->dout;
  s.y = p->v;
  s.z = p->k;
  s.out = g->dq;
  s.state_in = p->initial_state;
  s.summed = true;
  s.outer = g->scale;
  s.dx = p->value_size;
  s.dz = p->key_size;
  add_scan(g, s);
}

static void add_dk(plan *g) {
  const problem *p = &g->p;
  scan s = lightning_scan_of(p, g->bounds);
  s.x = p->v;
  s.y = g->dout;
  s.z = p->q;
  s.out = g->dk;
  s.state_in = g->d_final_state;
  s.reversed = s.summed = true;
  s.inner = g->scale;
  s.dx = p->value_size;
  s.dz = p->key_size;
  add_scan(g, s);
}

static void add_dv_and_state(plan *g) {
  const problem *p = &g->p;
  scan s = lightning_scan_of(p, g->bounds);
  s.x = p->k;
  s.y = p->q;
  s.z = g->dout;
  s.out = g->dv;
  s.state_in = g->d_final_state;
  s.state_out = g->d_initial_state;
  s.state_transposed = s.reversed = true;
  s.inner = g->scale;
  s.dx = p->key_size;
  s.dz = p->value_size;
  add_scan(g, s);
}

/* The scan that writes d_initial_state is the last: that may be d_final_state, which the others read. */
static void add_scans(plan *g) {
  if (tigon_present(&g->dq)) add_dq(g);
  if (tigon_present(&g->dk)) add_dk(g);
  if (tigon_present(&g->dv) || tigon_present(&g->d_initial_state)) add_dv_and_state(g);
}

static void check_own(tigon_checker *check, plan *g, const tigon_lightning_attention_backward_args *a) {
  problem *p = &g->p;
  const unsigned flags = TIGON_OUTPUT | TIGON_OPTIONAL;
  g->dout = tigon_check_tensor(check, "dout", a->dout, TIGON_FLOATS, 0, 4, p->v.shape);
  p->initial_state = lightning_check_state(check, p, "initial_state", a->initial_state, TIGON_OPTIONAL);
  g->d_final_state = lightning_check_state(check, p, "d_final_state", a->d_final_state, TIGON_OPTIONAL);
  g->dq = tigon_check_tensor(check, "dq", a->dq, TIGON_FLOATS, flags, 4, p->q.shape);
  g->dk = tigon_check_tensor(check, "dk", a->dk, TIGON_FLOATS, flags, 4, p->q.shape);
  g->dv = tigon_check_tensor(check, "dv", a->dv, TIGON_FLOATS, flags, 4, p->v.shape);
  g->d_initial_state = lightning_check_state(check, p, "d_initial_state", a->d_initial_state, flags);
  const struct {
    const char *name;
    const tigon_view *view;
  } outputs[] = {{"dq", &g->dq}, {"dk", &g->dk}, {"dv", &g->dv}, {"d_initial_state", &g->d_initial_state}};
  for (int i = 0; i < 4; i++) {
    lightning_check_output_apart(check, p, outputs[i].name, outputs[i].view);
    tigon_check_apart(check, outputs[i].name, outputs[i].view, "dout", &g->dout);
    tigon_check_apart(check, outputs[i].name, outputs[i].view, "initial_state", &p->initial_state);
    if (i < 3) tigon_check_apart(check, outputs[i].name, outputs[i].view, "d_final_state", &g->d_final_state);
    for (int j = 0; j < i; j++)
      tigon_check_apart(check, outputs[i].name, outputs[i].view, outputs[j].name, outputs[j].view);
  }
  tigon_check_same_or_apart(check, "d_initial_state", &g->d_initial_state, "d_final_state", &g->d_final_state);
}

static void refuse_pool(tigon_checker *check, const char *name, const DLTensor *given) {
  if (check->status != TIGON_OK || !given) return;
  check->status =
      tigon_fail(TIGON_UNSUPPORTED, op, name,
                 "expected NULL: forward may have overwritten the pool, so gather the initial states before "
                 "forward and pass them as initial_state");
}

static tigon_status prepare(const tigon_exec *exec, const tigon_lightning_attention_backward_args *args, bool query,
                            plan *g) {
  tigon_lightning_attention_backward_args a;
  tigon_exec e;
  tigon_status status = tigon_exec_load(op, exec, TIGON_ON_CPU, &e);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", args, &a, sizeof a);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  refuse_pool(&check, "state_indices", a.state_indices);
  refuse_pool(&check, "has_initial_state", a.has_initial_state);
  lightning_check_inputs(&check, &g->p, true, a.q, a.k, a.v, a.decay, a.cu_seqlens);
  g->scale = lightning_check_scale(&check, a.scale);
  check_own(&check, g, &a);
  tigon_check_alone(&check, a.team, "", 0);
  if (check.status != TIGON_OK) return check.status;

  tigon_arena arena = {.base = query ? NULL : e.workspace};
  g->threads = e.num_threads;
  g->context = e.context;
  g->bounds = lightning_take_bounds(&arena, &g->p.cu_seqlens);
  add_scans(g);
  uint64_t scratch = 0;
  for (int i = 0; i < g->count; i++)
    if (g->scans[i].scratch_bytes > scratch) scratch = g->scans[i].scratch_bytes;
  g->scratch = tigon_arena_take(&arena, g->p.sequences ? scratch * (uint64_t)g->threads : 0);
  g->bytes = arena.used;
  return query ? TIGON_OK : tigon_workspace_check(op, &e, g->bytes);
}

tigon_status tigon_lightning_attention_backward(const tigon_exec *exec,
                                                const tigon_lightning_attention_backward_args *args) {
  plan g = {0};
  const tigon_status status = prepare(exec, args, false, &g);
  if (status != TIGON_OK) return status;
  lightning_fill_bounds(&g.p.cu_seqlens, "cu_seqlens", g.p.tokens, true, op, g.context, g.bounds);
  lightning_note_decay(&g.p.decay, op, g.context);
  for (int i = 0; i < g.count; i++) {
    lightning_zero_outside(&g.p, g.bounds, g.threads, &g.scans[i].out);
    lightning_scan_run(&g.scans[i], g.threads, g.scratch);
  }
  return TIGON_OK;
}

tigon_status tigon_lightning_attention_backward_workspace(const tigon_exec *exec,
                                                          const tigon_lightning_attention_backward_args *args,
                                                          uint64_t *bytes) {
  plan g = {0};
  const tigon_status status = prepare(exec, args, true, &g);
  return status == TIGON_OK ? tigon_workspace_answer(op, g.bytes, bytes) : status;
}
