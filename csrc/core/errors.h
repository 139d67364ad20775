// Warnings to the user, waiting, and the user's wish to stop. The core knows no Python: whoever
// embeds it says where warnings go, how to wait without its lock and what asks for an end.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/FunctionRef.h>

#include <functional>
#include <string>

namespace torch_cudnn_ext {

void warn(const std::string& message);
void set_warning_sink(std::function<void(const std::string&)> sink);

// PyTorch's allocator on the CPU has no type of its own for this.
bool is_out_of_memory(const c10::Error& error);

// An algorithm that could be built says at its run that it does not take the problem, before it
// computes anything.
struct UnsupportedAtRun : c10::Error {
  using Error::Error;
};

// Runs what waits for another thread, which may need Python's lock: without it, where this thread
// has it.
void wait_for_others(c10::function_ref<void()> waiting);
void set_wait_for_others(std::function<void(c10::function_ref<void()>)> function);

// Throws when the user asked to stop (Ctrl-C). Called between the steps of long work.
void check_interrupt();
void set_interrupt_check(std::function<void()> check);
// The same within a call that may take long: at most every tenth of a second on a thread.
void check_interrupt_if_due();

}  // namespace torch_cudnn_ext
