#include "gpu/device.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/status.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tigon_device_facts known[TIGON_MOST_DEVICES];
static atomic_bool read_already[TIGON_MOST_DEVICES];

static void choose_image(tigon_device_facts *facts) {
  facts->image = facts->major >= 8 ? "compute_80" : "";
  if (facts->major == 9 && facts->minor == 0) facts->image = "sm_90a";
  if (facts->major == 10) facts->image = "sm_100f";
  facts->hopper_code = facts->image[0] == 's';
}

static tigon_status read_facts(const tigon_driver *driver, const char *op, const char *name, int id,
                               tigon_device_facts *facts) {
  const struct {
    CUdevice_attribute attribute;
    int *value;
  } wanted[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &facts->major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &facts->minor},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &facts->multiprocessors},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &facts->shared_bytes},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &facts->multiprocessor_shared_bytes},
  };
  int count = 0;
  CUresult result = driver->cuDeviceGetCount(&count);
  if (result != CUDA_SUCCESS) return tigon_driver_fail(driver, op, "cuDeviceGetCount", result);
  if (id >= count) return tigon_fail(TIGON_UNAVAILABLE, op, name, "expected one of %d CUDA devices, got %d", count, id);
  facts->id = id;
  result = driver->cuDeviceGet(&facts->handle, id);
  if (result != CUDA_SUCCESS) return tigon_driver_fail(driver, op, "cuDeviceGet", result);
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    result = driver->cuDeviceGetAttribute(wanted[i].value, wanted[i].attribute, facts->handle);
    if (result != CUDA_SUCCESS) return tigon_driver_fail(driver, op, "cuDeviceGetAttribute", result);
  }
  choose_image(facts);
  size_t memory = 0;
  result = driver->cuDeviceTotalMem(&memory, facts->handle);
  if (result != CUDA_SUCCESS) return tigon_driver_fail(driver, op, "cuDeviceTotalMem", result);
  facts->memory_bytes = memory;
  result = driver->cuDevicePrimaryCtxRetain(&facts->primary, facts->handle);
  return result == CUDA_SUCCESS ? TIGON_OK : tigon_driver_fail(driver, op, "cuDevicePrimaryCtxRetain", result);
}

tigon_status tigon_device_get(const char *op, const char *name, DLDevice device, const tigon_device_facts **facts) {
  const tigon_driver *driver;
  tigon_status status = tigon_driver_open(op, name, &driver);
  if (status != TIGON_OK) return status;
  const int id = device.device_id;
  if (id < 0 || id >= TIGON_MOST_DEVICES)
    return tigon_fail(TIGON_INVALID_ARGUMENT, op, name, "expected a device number from 0 to %d, got %d",
                      TIGON_MOST_DEVICES - 1, id);
  if (!atomic_load_explicit(&read_already[id], memory_order_acquire)) {
    pthread_mutex_lock(&lock);
    if (!atomic_load(&read_already[id])) {
      status = read_facts(driver, op, name, id, &known[id]);
      atomic_store_explicit(&read_already[id], status == TIGON_OK, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
  }
  *facts = &known[id];
  return status;
}
