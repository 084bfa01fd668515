/* RMSNorm on CUDA devices: chooses kernels and the shape of their grids. */
#include "base/integer.h"
#include "gpu/launch.h"
#include "rms_norm/backend.h"
#include "rms_norm/kernels/params.h"

TIGON_IMAGE(rms_norm_forward)
TIGON_IMAGE(rms_norm_backward)

enum { SETS = 4, SIZES = 3 };
enum { SET_BF16, SET_F16, SET_F32, SET_MIXED };

/* Kernels by the kinds of the tensors and by the vectors that a thread holds of a row, which double from `fewest`
 * on. */
typedef struct kernel_set {
  int elements; /* of a vector */
  int fewest, sizes;
  tigon_kernel kernel[SIZES];
} kernel_set;

#define FORWARD(name)  TIGON_KERNEL(rms_norm_forward, "rms_norm_forward_" name)
#define BACKWARD(name) TIGON_KERNEL(rms_norm_backward, "rms_norm_backward_" name)
static tigon_kernel forward_any = FORWARD("any"), backward_any = BACKWARD("any");
static tigon_kernel d_weight_kernel = TIGON_KERNEL(rms_norm_backward, "rms_norm_d_weight");
static kernel_set forward_sets[SETS] = {
    {8, 1, 3, {FORWARD("bf16_1"), FORWARD("bf16_2"), FORWARD("bf16_4")}},
    {8, 1, 3, {FORWARD("f16_1"), FORWARD("f16_2"), FORWARD("f16_4")}},
    {4, 2, 3, {FORWARD("f32_2"), FORWARD("f32_4"), FORWARD("f32_8")}},
    {4, 2, 3, {FORWARD("mixed_2"), FORWARD("mixed_4"), FORWARD("mixed_8")}},
};
static kernel_set backward_sets[SETS] = {
    {8, 2, 1, {BACKWARD("bf16_2")}},
    {8, 2, 1, {BACKWARD("f16_2")}},
    {4, 2, 2, {BACKWARD("f32_2"), BACKWARD("f32_4")}},
    {4, 2, 2, {BACKWARD("mixed_2"), BACKWARD("mixed_4")}},
};

enum {
  MOST_THREADS = 512,      /* of a block; of backward's, also of a multiprocessor: its registers allow as many */
  FORWARD_GROUP = 64,      /* threads of a row in forward, where the vectors of a thread can be chosen so */
  FORWARD_VECTORS = 4,     /* which are no more than this where that is enough */
  FORWARD_RESIDENT = 1024, /* threads of forward on a multiprocessor */
  SHARING_THREADS = 128,   /* of a block that narrow rows share */
  UNDER_WAY = 64 << 10,    /* bytes that a multiprocessor has on their way in backward (kernels/ring.cuh) */
  UNDER_WAY_16 = 48 << 10, /* where the tensors are of 16 bits, which take more instructions a byte */
  ANY_THREADS = 512,       /* of a block of the kernels that take any row */
  ANY_BLOCKS = 2,          /* of them on a multiprocessor */
  ANY_PARTIALS = 1 << 24,  /* floats of partial d_weight that those kernels may spread over */
  STREAM_BYTES = 16 << 20, /* above them x is loaded with evict_last (docs/lab/gpu_rms_norm.md) */
  MOST_ROWS = 1 << 30,
  BLOCK_SHARED = 2048 /* shared memory of a block beside the ring: its sums, and what the system keeps */
};

/* How the threads of a launch stand on the rows. */
typedef struct plan {
  tigon_kernel *kernel;
  int group, side_by_side, cluster, ahead, shared_bytes;
  int64_t vectors, clusters;
} plan;

typedef struct row_tensors {
  const rms_norm_tensor *tensor[8];
  int count;
} row_tensors;

static void add(row_tensors *all, const rms_norm_tensor *tensor, bool present) {
  if (present) all->tensor[all->count++] = tensor;
}

/* The kind of all of them, or SET_MIXED. The kernels of one kind round xhat to it or not at all. */
static int set_of(const row_tensors *all, tigon_kind xhat) {
  const tigon_kind kind = all->tensor[0]->kind;
  if (xhat != kind && xhat != TIGON_F32) return SET_MIXED;
  for (int i = 1; i < all->count; i++)
    if (all->tensor[i]->kind != kind) return SET_MIXED;
  return kind == TIGON_BF16 ? SET_BF16 : kind == TIGON_F16 ? SET_F16 : SET_F32;
}

static bool aligned(const rms_norm_tensor *tensor, int64_t elements) {
  const int64_t bytes = elements * tigon_kind_bytes(tensor->kind), to = bytes < 16 ? bytes : 16;
  return (uintptr_t)tensor->data % (uintptr_t)to == 0 && tensor->outer_bytes % to == 0 && tensor->head_bytes % to == 0;
}

/* Whether the kernels that take vectors can take these: they count rows in 32 bits. */
static bool all_aligned(const row_tensors *all, const rms_norm_tensor *weight, const rms_norm_shape *shape,
                        int elements) {
  bool good = shape->width % elements == 0 && shape->rows < MOST_ROWS && aligned(weight, elements);
  for (int i = 0; i < all->count; i++) good = good && aligned(all->tensor[i], elements);
  return good;
}

static int round_group(int64_t threads) {
  int group = 1;
  if (threads > 32) return (int)tigon_round_up(threads, 32);
  while (group < threads) group *= 2;
  return group;
}

/* Spreads a row over `size` of the set's vectors a thread and p->cluster blocks; false where those are too few. */
static bool spread(kernel_set *set, int size, plan *p) {
  const int64_t group = tigon_ceil_div(p->vectors, (int64_t)(set->fewest << size) * p->cluster);
  if (group > MOST_THREADS) return false;
  p->kernel = &set->kernel[size];
  p->group = round_group(group);
  /* groups side by side are powers of two */
  const bool shares = p->cluster == 1 && p->group <= SHARING_THREADS / 2 && (p->group & (p->group - 1)) == 0;
  p->side_by_side = shares ? SHARING_THREADS / p->group : 1;
  return true;
}

/* 16 blocks are more than every device promises; whole data-centre devices have them, parts of one may not. */
static int most_cluster(const tigon_device_facts *device) {
  enum { WHOLE = 100 };
  if (!device->hopper_code) return 1;
  return device->multiprocessors >= WHOLE ? 16 : 8;
}

static plan plan_any_forward(const rms_norm_forward *f) {
  const int64_t width = f->shape.width;
  return (plan){.kernel = &forward_any,
                .group = width < ANY_THREADS ? round_group(width < 32 ? 32 : width) : ANY_THREADS,
                .side_by_side = 1,
                .cluster = 1,
                .clusters = f->shape.rows};
}

/* The fewest vectors a thread with which a row takes FORWARD_GROUP threads, or all rows run at once; else
 * FORWARD_VECTORS, and more for the widest. */
static plan plan_forward(const tigon_device_facts *device, const rms_norm_forward *f) {
  row_tensors all = {0};
  add(&all, &f->x, true);
  add(&all, &f->residual, f->sum.data);
  add(&all, &f->sum, f->sum.data);
  add(&all, &f->out, true);
  kernel_set *set = &forward_sets[set_of(&all, f->xhat_kind)];
  if (!all_aligned(&all, &f->weight, &f->shape, set->elements)) return plan_any_forward(f);
  plan p = {.vectors = f->shape.width / set->elements, .cluster = 1};
  const int64_t at_once = (int64_t)FORWARD_RESIDENT * device->multiprocessors / (f->shape.rows > 0 ? f->shape.rows : 1);
  int first = 0;
  while (set->fewest << first < FORWARD_VECTORS) {
    const int64_t group = tigon_ceil_div(p.vectors, set->fewest << first);
    if (group <= FORWARD_GROUP || (group <= MOST_THREADS && group <= at_once)) break;
    first++;
  }
  for (; p.cluster <= most_cluster(device); p.cluster *= 2)
    for (int size = first; size < set->sizes; size++)
      if (spread(set, size, &p)) {
        p.clusters = tigon_ceil_div(f->shape.rows, p.side_by_side);
        return p;
      }
  return plan_any_forward(f);
}

/* Blocks of a multiprocessor, and rows under way. False where the ring of one row ahead is too large. */
static bool fit_ring(const tigon_device_facts *device, const kernel_set *set, int size, int tensors, plan *p,
                     int *resident) {
  const int threads = p->group * p->side_by_side, under_way = set->elements == 8 ? UNDER_WAY_16 : UNDER_WAY;
  const int stage = (set->fewest << size) * threads * tensors * RMS_NORM_SLOT_BYTES;
  *resident = MOST_THREADS / threads;
  const int ahead = under_way / (stage * *resident);
  p->ahead = ahead < 1 ? 1 : ahead > RMS_NORM_MOST_AHEAD ? RMS_NORM_MOST_AHEAD : ahead;
  p->shared_bytes = (p->ahead + 1) * stage;
  while (*resident > 1 && *resident * (p->shared_bytes + BLOCK_SHARED) > device->multiprocessor_shared_bytes)
    --*resident;
  return p->shared_bytes + BLOCK_SHARED <= device->shared_bytes;
}

/* The fewest vectors a thread, in the narrowest cluster, that hold a row. tensors: how many come through the ring. */
static bool plan_ring(const tigon_device_facts *device, const rms_norm_shape *shape, kernel_set *set, int tensors,
                      plan *p) {
  *p = (plan){.vectors = shape->width / set->elements};
  for (p->cluster = 1; p->cluster <= most_cluster(device); p->cluster *= 2)
    for (int size = 0; size < set->sizes; size++) {
      int resident;
      if (!spread(set, size, p)) continue;
      if (!fit_ring(device, set, size, tensors, p, &resident)) continue;
      const int64_t most = (int64_t)device->multiprocessors * resident / p->cluster;
      if (most < 1) continue;
      p->clusters = tigon_smaller(tigon_ceil_div(shape->rows, p->side_by_side), most);
      return true;
    }
  return false;
}

static plan plan_any_backward(const tigon_device_facts *device, const rms_norm_backward *b) {
  const int64_t width = b->shape.width, most = ANY_BLOCKS * device->multiprocessors;
  const int64_t fitting = width < ANY_PARTIALS ? ANY_PARTIALS / width : 1;
  return (plan){.kernel = &backward_any,
                .group = width < ANY_THREADS ? round_group(width < 32 ? 32 : width) : ANY_THREADS,
                .side_by_side = 1,
                .cluster = 1,
                .clusters = tigon_smaller(b->shape.rows, tigon_smaller(most, fitting))};
}

/* `query`: as if all were aligned. */
static plan plan_backward(const tigon_device_facts *device, const rms_norm_backward *b, bool query) {
  row_tensors all = {0};
  add(&all, &b->x, true);
  add(&all, &b->dy, b->has_dy);
  add(&all, &b->d_sum, b->has_d_sum);
  add(&all, &b->dx, b->has_dx);
  add(&all, &b->d_residual, b->has_d_residual);
  kernel_set *set = &backward_sets[set_of(&all, b->xhat_kind)];
  const bool good =
      query ? b->shape.width % set->elements == 0 : all_aligned(&all, &b->weight, &b->shape, set->elements);
  plan p;
  if (b->has_dy && good && plan_ring(device, &b->shape, set, b->has_d_sum ? 3 : 2, &p)) return p;
  return plan_any_backward(device, b);
}

tigon_status tigon_rms_norm_gpu_chunks(const char *op, DLDevice device, const rms_norm_backward *b, int64_t *chunks) {
  const tigon_device_facts *facts;
  const tigon_status status = tigon_device_get(op, "exec.device", device, &facts);
  if (status != TIGON_OK) return status;
  /* a query does not know addresses, which decide between the kernels */
  const int64_t aligned = plan_backward(facts, b, true).clusters, any = plan_any_backward(facts, b).clusters;
  *chunks = aligned > any ? aligned : any;
  return TIGON_OK;
}

static rms_norm_rows rows_of(const rms_norm_tensor *tensor) {
  return (rms_norm_rows){tensor->data, tensor->outer_bytes, tensor->head_bytes, (int32_t)tensor->kind};
}

/* Heads that follow each other as rows do are rows: the kernels divide by the number of heads. */
static void join_heads(int64_t *heads, rms_norm_rows **tensors, int count) {
  for (int i = 0; i < count; i++)
    if (tensors[i]->data && tensors[i]->outer_bytes != *heads * tensors[i]->head_bytes) return;
  if (*heads == 1) return;
  for (int i = 0; i < count; i++) tensors[i]->outer_bytes = tensors[i]->head_bytes;
  *heads = 1;
}

static bool streams(const rms_norm_forward *f) {
  return f->shape.rows * f->shape.width * tigon_kind_bytes(f->x.kind) > STREAM_BYTES;
}

static rms_norm_layout layout_of(const plan *p) {
  rms_norm_layout layout = {.group = p->group,
                            .side_by_side = p->side_by_side,
                            .cluster = p->cluster,
                            .ahead = p->ahead,
                            .vectors = (int32_t)p->vectors};
  while (1 << layout.group_log2 < p->group) layout.group_log2++;
  return layout;
}

static tigon_grid grid_of(const plan *p) {
  enum { MOST_BLOCKS = 0x7fffffff };
  const int64_t blocks = tigon_smaller(p->clusters, MOST_BLOCKS / p->cluster) * p->cluster;
  return (tigon_grid){
      .blocks = blocks, .threads = p->group * p->side_by_side, .shared_bytes = p->shared_bytes, .cluster = p->cluster};
}

tigon_status tigon_rms_norm_gpu_forward(const char *op, const tigon_exec *exec, const rms_norm_forward *f) {
  tigon_gpu_call call;
  const tigon_status status = tigon_gpu_begin(op, exec, &call);
  if (status != TIGON_OK) return status;
  if (f->shape.rows == 0) return tigon_gpu_end(&call, TIGON_OK);
  const plan p = plan_forward(call.device, f);
  rms_norm_forward_params params = {.rows = f->shape.rows,
                                    .heads = f->shape.heads,
                                    .width = f->shape.width,
                                    .x = rows_of(&f->x),
                                    .residual = rows_of(&f->residual),
                                    .weight = rows_of(&f->weight),
                                    .out = rows_of(&f->out),
                                    .sum = rows_of(&f->sum),
                                    .rstd = rows_of(&f->rstd),
                                    .xhat_kind = (int32_t)f->xhat_kind,
                                    .streams = streams(f),
                                    .layout = layout_of(&p),
                                    .inverse_width = 1.0f / (float)f->shape.width,
                                    .eps = f->eps,
                                    .offset = f->offset};
  rms_norm_rows *tensors[] = {&params.x, &params.residual, &params.out, &params.sum, &params.rstd};
  join_heads(&params.heads, tensors, 5);
  return tigon_gpu_end(&call, tigon_gpu_launch(&call, p.kernel, grid_of(&p), &params));
}

static tigon_status launch_rows(const tigon_gpu_call *call, const rms_norm_backward *b, const plan *p) {
  rms_norm_backward_params params = {.rows = b->shape.rows,
                                     .heads = b->shape.heads,
                                     .width = b->shape.width,
                                     .dy = rows_of(&b->dy),
                                     .d_sum = rows_of(&b->d_sum),
                                     .x = rows_of(&b->x),
                                     .weight = rows_of(&b->weight),
                                     .rstd = rows_of(&b->rstd),
                                     .dx = rows_of(&b->dx),
                                     .d_residual = rows_of(&b->d_residual),
                                     .partials = b->partials,
                                     .xhat_kind = (int32_t)b->xhat_kind,
                                     .layout = layout_of(p),
                                     .inverse_width = 1.0f / (float)b->shape.width,
                                     .offset = b->offset};
  rms_norm_rows *tensors[] = {&params.dy, &params.d_sum, &params.x, &params.rstd, &params.dx, &params.d_residual};
  join_heads(&params.heads, tensors, 6);
  return tigon_gpu_launch(call, p->kernel, grid_of(p), &params);
}

static tigon_status launch_d_weight(const tigon_gpu_call *call, const rms_norm_backward *b, int64_t chunks) {
  rms_norm_reduce_params params = {.partials = b->partials,
                                   .chunks = chunks,
                                   .width = b->shape.width,
                                   .d_weight = b->d_weight.data,
                                   .kind = (int32_t)b->d_weight.kind,
                                   .accumulate = b->accumulate_d_weight};
  const tigon_grid grid = {.blocks = tigon_ceil_div(b->shape.width, RMS_NORM_REDUCE_COLUMNS),
                           .threads = RMS_NORM_REDUCE_COLUMNS * RMS_NORM_REDUCE_ROWS,
                           .overlaps = chunks > 0};
  return tigon_gpu_launch(call, &d_weight_kernel, grid, &params);
}

tigon_status tigon_rms_norm_gpu_backward(const char *op, const tigon_exec *exec, const rms_norm_backward *b) {
  tigon_gpu_call call;
  tigon_status status = tigon_gpu_begin(op, exec, &call);
  if (status != TIGON_OK) return status;
  const plan p = plan_backward(call.device, b, false);
  if (b->shape.rows > 0 && (b->partials || b->has_dx || b->has_d_residual)) status = launch_rows(&call, b, &p);
  if (status == TIGON_OK && b->d_weight.data) status = launch_d_weight(&call, b, b->partials ? p.clusters : 0);
  return tigon_gpu_end(&call, status);
}
