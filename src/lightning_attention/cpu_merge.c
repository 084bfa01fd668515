/* out = lambda^length * left + right for one value head of one sequence. */
#include <math.h>

#include "base/vec.h"
#include "lightning_attention/backend.h"

static float *head_of(const tigon_view *view, int64_t n, int64_t head) {
  return (float *)(void *)view->data + n * view->stride[0] + head * view->stride[1];
}

void TIGON_ISA_FN(tigon_lightning_merge_unit)(void *context, int64_t chunk, int slot) {
  (void)slot;
  const merge *m = context;
  const int64_t heads = m->out.shape[1], k_size = m->out.shape[3], n = chunk / heads, head = chunk % heads;
  const int64_t length = tigon_load_index(m->lengths.data, m->lengths.kind, n * m->lengths.stride[0]);
  const double decay = (double)lightning_decay(&m->decay, head, heads);
  const float power = length > 0 ? (float)exp(-decay * (double)length) : 1.0f;
  for (int64_t v = 0; v < m->out.shape[2]; v++) {
    const float *left = head_of(&m->left, n, head) + v * m->left.stride[2];
    const float *right = head_of(&m->right, n, head) + v * m->right.stride[2];
    float *out = head_of(&m->out, n, head) + v * m->out.stride[2];
    int64_t i = 0;
    for (; i + VF_LANES <= k_size; i += VF_LANES)
      vf_store(out + i, vf_fma(vf_set(power), vf_load(left + i), vf_load(right + i)));
    for (; i < k_size; i++) out[i] = vf_fma_one(power, left[i], right[i]);
  }
}
