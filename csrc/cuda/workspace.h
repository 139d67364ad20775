// The workspaces of cuDNN's calls: from PyTorch's caching allocator for each call, or from a block
// that is reserved for them. Knows nothing of plans and problems.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch_cudnn_ext {

// On the current device, for work on the current stream. Freed when the call has enqueued its work.
c10::DataPtr allocate_workspace(size_t bytes);

// Reserves this many bytes on each device, by its index; 0 reserves nothing. A device's block is
// allocated at the first call that needs a workspace there. A block of another size, or one that
// is no longer needed, returns to PyTorch's allocator once no call uses it.
//
// One call at a time holds the block while it enqueues its work. A call gets the block if the
// block's last user enqueued on the same stream, since the stream's order keeps the two apart. It
// also gets the block if the GPU has finished that user's work. All other calls, those that do not
// fit, and those under stream capture take their workspace from the allocator, as without a
// reserve.
void set_workspace_reserve(const std::vector<int64_t>& bytes_by_device);

struct WorkspaceReserveInfo {
  int64_t held_bytes;  // of the current device's block
  int64_t served;      // how many workspaces the blocks of all devices provided so far
};
WorkspaceReserveInfo workspace_reserve_info();

}  // namespace torch_cudnn_ext
