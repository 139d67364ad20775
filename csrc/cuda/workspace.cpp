#include "cuda/workspace.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "core/errors.h"
#include "cuda/capture_mode.h"

namespace torch_cudnn_ext {

namespace {

constexpr size_t kMostDevices = 64;

std::atomic<bool> reserves{false};  // on any device
std::atomic<int64_t> served_workspaces{0};

class Block {
 public:
  // Allocates on the current device.
  Block(int64_t bytes, c10::cuda::CUDAStream stream)
      : bytes(bytes), allocated_for_(stream), last_stream_(stream) {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&last_use_, cudaEventDisableTiming));
    try {
      memory_ = c10::cuda::CUDACachingAllocator::get()->allocate(static_cast<size_t>(bytes));
    } catch (...) {
      cudaEventDestroy(last_use_);
      throw;
    }
  }
  // Waits for work on other streams: the allocator reuses the memory on the stream that it was
  // allocated for.
  ~Block() {
    CaptureMode relaxed(cudaStreamCaptureModeRelaxed);
    if (last_stream_ != allocated_for_) cudaEventSynchronize(last_use_);
    memory_.clear();
    cudaEventDestroy(last_use_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Null if another call holds the block, or if work on another stream may still use it.
  static c10::DataPtr take(const std::shared_ptr<Block>& block, c10::cuda::CUDAStream stream) {
    if (block->is_taken_.exchange(true, std::memory_order_acquire)) return {};
    if (stream != block->last_stream_ && !block->is_idle()) {
      block->is_taken_.store(false, std::memory_order_release);
      return {};
    }
    block->last_stream_ = stream;
    block->taken_ = block;
    served_workspaces.fetch_add(1, std::memory_order_relaxed);
    return {block->memory_.get(), block.get(), &give_back, block->memory_.device()};
  }

  const int64_t bytes;

 private:
  bool is_idle() const {
    CaptureMode relaxed(cudaStreamCaptureModeRelaxed);
    cudaError_t status = is_recorded_ ? cudaEventQuery(last_use_) : cudaErrorNotReady;
    if (status == cudaErrorNotReady) cudaGetLastError();  // not an error
    return status == cudaSuccess;
  }

  static void give_back(void* context) {
    auto* block = static_cast<Block*>(context);
    std::shared_ptr<Block> taken = std::move(block->taken_);  // may be the last reference
    // The event outlives its stream, which the user may destroy.
    block->is_recorded_ = cudaEventRecord(block->last_use_, block->last_stream_) == cudaSuccess;
    block->is_taken_.store(false, std::memory_order_release);
  }

  const c10::cuda::CUDAStream allocated_for_;
  c10::DataPtr memory_;
  std::atomic<bool> is_taken_{false};
  // The members below belong to the call that holds the block.
  c10::cuda::CUDAStream last_stream_;
  cudaEvent_t last_use_ = nullptr;
  bool is_recorded_ = false;
  std::shared_ptr<Block> taken_;  // this block, while it is held
};

struct Reserve {
  std::mutex mutex;  // guards the other members; nothing is allocated or freed under it
  int64_t bytes = 0;
  uint64_t generation = 0;  // grows when `bytes` changes
  bool is_made = false;     // true also while the block is made, and if it could not be made
  std::shared_ptr<Block> block;
};

// Never destroyed: the driver is gone before static objects are.
std::array<Reserve, kMostDevices>& all_reserves() {
  static auto* all = new std::array<Reserve, kMostDevices>();
  return *all;
}

// Without memory for it, this warns and calls go on without a block.
void make_block(Reserve& reserve, int64_t bytes, uint64_t generation,
                c10::cuda::CUDAStream stream) {
  std::shared_ptr<Block> made;
  try {
    made = std::make_shared<Block>(bytes, stream);
  } catch (const c10::OutOfMemoryError& error) {
    warn(c10::str("reserve_workspace: there is no memory for ", bytes,
                  " bytes on cuda:", static_cast<int>(stream.device_index()),
                  ", so every call there allocates its workspace until reserve_workspace is set "
                  "to another amount: ",
                  error.what_without_backtrace()));
    return;
  } catch (...) {
    std::lock_guard<std::mutex> lock(reserve.mutex);
    if (reserve.generation == generation) reserve.is_made = false;
    throw;
  }
  std::lock_guard<std::mutex> lock(reserve.mutex);
  if (reserve.generation == generation) reserve.block.swap(made);
}

c10::DataPtr take_from_reserve(size_t bytes) {
  auto status = c10::cuda::currentStreamCaptureStatusMayInitCtx();
  if (bytes == 0 || status != c10::cuda::CaptureStatus::None) return {};
  c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  auto index = static_cast<size_t>(stream.device_index());
  if (index >= kMostDevices) return {};
  Reserve& reserve = all_reserves()[index];
  std::shared_ptr<Block> block;
  int64_t to_make = 0;
  uint64_t generation = 0;
  {
    std::lock_guard<std::mutex> lock(reserve.mutex);
    if (bytes > static_cast<uint64_t>(reserve.bytes)) return {};
    if (!std::exchange(reserve.is_made, true)) {
      to_make = reserve.bytes;
      generation = reserve.generation;
    }
    block = reserve.block;
  }
  if (to_make > 0) {
    make_block(reserve, to_make, generation, stream);
    std::lock_guard<std::mutex> lock(reserve.mutex);
    block = reserve.block;
  }
  if (block == nullptr || bytes > static_cast<uint64_t>(block->bytes)) return {};
  return Block::take(block, stream);
}

}  // namespace

c10::DataPtr allocate_workspace(size_t bytes) {
  if (reserves.load(std::memory_order_relaxed)) {
    if (c10::DataPtr reserved = take_from_reserve(bytes)) return reserved;
  }
  return c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
}

void set_workspace_reserve(const std::vector<int64_t>& bytes_by_device) {
  TORCH_CHECK_VALUE(bytes_by_device.size() <= kMostDevices, "reserve_workspace: got ",
                    bytes_by_device.size(), " devices, wanted at most ", kMostDevices);
  for (int64_t bytes : bytes_by_device) {
    TORCH_CHECK_VALUE(bytes >= 0, "reserve_workspace: got ", bytes, " bytes, wanted 0 or more");
  }
  bool any = false;
  for (size_t i = 0; i < kMostDevices; ++i) {
    int64_t bytes = i < bytes_by_device.size() ? bytes_by_device[i] : 0;
    any |= bytes > 0;
    Reserve& reserve = all_reserves()[i];
    std::shared_ptr<Block> gone;  // freed without the lock
    std::lock_guard<std::mutex> lock(reserve.mutex);
    if (reserve.bytes == bytes && (reserve.block != nullptr || bytes == 0)) continue;
    reserve.bytes = bytes;
    ++reserve.generation;
    reserve.is_made = false;
    gone.swap(reserve.block);
  }
  reserves.store(any, std::memory_order_relaxed);
}

WorkspaceReserveInfo workspace_reserve_info() {
  WorkspaceReserveInfo info{0, served_workspaces.load(std::memory_order_relaxed)};
  if (!reserves.load(std::memory_order_relaxed)) return info;  // there may be no device
  auto index = static_cast<size_t>(c10::cuda::current_device());
  if (index >= kMostDevices) return info;
  Reserve& reserve = all_reserves()[index];
  std::lock_guard<std::mutex> lock(reserve.mutex);
  if (reserve.block != nullptr) info.held_bytes = reserve.block->bytes;
  return info;
}

}  // namespace torch_cudnn_ext
