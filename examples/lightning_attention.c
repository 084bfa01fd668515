/* Serving with a pool of states: prefill of two requests at once, then draft tokens verified and the accepted ones
 * committed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tigon/tigon.h>

enum { HEADS = 4, SIZE = 16, SLOTS = 8, PROMPTS = 2, PROMPT = 100, DRAFTS = 4 };
enum { TOKEN = HEADS * SIZE, STATE = HEADS * SIZE * SIZE };

static float q[PROMPTS * PROMPT * TOKEN], k[PROMPTS * PROMPT * TOKEN], v[PROMPTS * PROMPT * TOKEN];
static float out[PROMPTS * PROMPT * TOKEN], again[PROMPTS * TOKEN], pool[SLOTS * STATE];

static int failed(tigon_status status) {
  if (status != TIGON_OK) fprintf(stderr, "%s\n", tigon_last_error());
  return status != TIGON_OK;
}

/* Calls forward with the workspace that it asks for. */
static int prefill(const tigon_lightning_attention_args *args) {
  tigon_exec exec = {.size = sizeof exec};
  if (failed(tigon_lightning_attention_workspace(&exec, args, &exec.workspace_bytes))) return 1;
  exec.workspace = aligned_alloc(256, exec.workspace_bytes);
  const int bad = !exec.workspace || failed(tigon_lightning_attention(&exec, args));
  free(exec.workspace);
  return bad;
}

static int commit(const tigon_lightning_attention_state_args *args) {
  tigon_exec exec = {.size = sizeof exec};
  if (failed(tigon_lightning_attention_state_workspace(&exec, args, &exec.workspace_bytes))) return 1;
  exec.workspace = aligned_alloc(256, exec.workspace_bytes);
  const int bad = !exec.workspace || failed(tigon_lightning_attention_state(&exec, args));
  free(exec.workspace);
  return bad;
}

int main(void) {
  for (int i = 0; i < PROMPTS * PROMPT * TOKEN; i++) {
    q[i] = sinf((float)i);
    k[i] = cosf((float)(3 * i));
    v[i] = sinf((float)(7 * i + 1));
  }
  for (int i = 0; i < SLOTS * STATE; i++) pool[i] = NAN; /* what earlier requests left */
  float slopes[HEADS];
  if (failed(tigon_lightning_attention_slopes(TIGON_LIGHTNING_ATTENTION_ALIBI, 3, 24, HEADS, 0, HEADS, slopes)))
    return 1;

  /* Two new requests take slots 5 and 2. Their flags are 0: the slots are not read. */
  int32_t slots[PROMPTS] = {5, 2};
  uint8_t has_state[PROMPTS] = {0, 0};
  tigon_tensor tq, tk, tv, tout, tpool, tslots, thas, tdecay, tlengths;
  tigon_lightning_attention_args forward = {.size = sizeof forward, .scale = 0.25f};
  forward.q = tigon_tensor_4d(&tq, q, tigon_f32(), PROMPTS, PROMPT, HEADS, SIZE);
  forward.k = tigon_tensor_4d(&tk, k, tigon_f32(), PROMPTS, PROMPT, HEADS, SIZE);
  forward.v = tigon_tensor_4d(&tv, v, tigon_f32(), PROMPTS, PROMPT, HEADS, SIZE);
  forward.out = tigon_tensor_4d(&tout, out, tigon_f32(), PROMPTS, PROMPT, HEADS, SIZE);
  forward.decay = tigon_tensor_1d(&tdecay, slopes, tigon_f32(), HEADS);
  forward.initial_state = forward.final_state = tigon_tensor_4d(&tpool, pool, tigon_f32(), SLOTS, HEADS, SIZE, SIZE);
  forward.state_indices = tigon_tensor_1d(&tslots, slots, tigon_i32(), PROMPTS);
  forward.has_initial_state = tigon_tensor_1d(&thas, has_state, tigon_dtype(kDLUInt, 8), PROMPTS);
  if (prefill(&forward)) return 1;

  /* Each request proposes four tokens (here some of the same numbers). Without final_state the pool stays as it is. */
  tq.shape[1] = tk.shape[1] = tv.shape[1] = tout.shape[1] = DRAFTS;
  forward.final_state = NULL;
  forward.has_initial_state = NULL;
  if (prefill(&forward)) return 1;

  /* The sampler accepts 3 tokens of the first request and 1 of the second: their states take those in. */
  int32_t accepted[PROMPTS] = {3, 1};
  tigon_lightning_attention_state_args state = {.size = sizeof state, .k = &tk.dl, .v = &tv.dl, .decay = &tdecay.dl};
  state.lengths = tigon_tensor_1d(&tlengths, accepted, tigon_i32(), PROMPTS);
  state.initial_state = state.final_state = &tpool.dl;
  state.state_indices = &tslots.dl;
  if (commit(&state)) return 1;

  /* Decoding the token that follows gives, for the first request, what its fourth draft got. */
  tigon_tensor dq, dk, dv, dout;
  tigon_lightning_attention_decode_args decode = {.size = sizeof decode, .scale = 0.25f};
  decode.q = tigon_tensor_3d(&dq, q + 3 * TOKEN, tigon_f32(), PROMPTS, HEADS, SIZE);
  decode.k = tigon_tensor_3d(&dk, k + 3 * TOKEN, tigon_f32(), PROMPTS, HEADS, SIZE);
  decode.v = tigon_tensor_3d(&dv, v + 3 * TOKEN, tigon_f32(), PROMPTS, HEADS, SIZE);
  decode.out = tigon_tensor_3d(&dout, again, tigon_f32(), PROMPTS, HEADS, SIZE);
  dq.strides[0] = dk.strides[0] = dv.strides[0] = PROMPT * TOKEN;
  decode.decay = &tdecay.dl;
  decode.state = &tpool.dl;
  decode.state_indices = &tslots.dl;
  if (failed(tigon_lightning_attention_decode(NULL, &decode))) return 1;
  float worst = 0;
  for (int i = 0; i < TOKEN; i++) worst = fmaxf(worst, fabsf(again[i] - out[3 * TOKEN + i]));
  printf("decoded against verified: largest difference %.1e\n", (double)worst);
  return worst < 1e-4f && isnan(pool[0]) ? 0 : 1; /* slot 0 was nobody's */
}
