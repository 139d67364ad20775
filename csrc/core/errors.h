// Warnings, waiting for other threads, and interrupts by the user. Knows no Python: functions that
// are set from outside write the warnings, wait without Python's lock, and check for an interrupt.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/FunctionRef.h>

#include <functional>
#include <string>

namespace torch_cudnn_ext {

void warn(const std::string& message);
void set_warning_sink(std::function<void(const std::string&)> new_sink);

// Also recognises the CPU allocator's error, which has no type of its own.
bool is_out_of_memory(const c10::Error& error);

// Thrown by the run of a plan that was built, before it computes anything: its algorithm turns out
// not to support the problem.
struct UnsupportedAtRun : c10::Error {
  using Error::Error;
};

// Runs a function that waits for another thread. Releases Python's lock meanwhile, since that
// thread may need it.
void wait_for_others(c10::function_ref<void()> waiting);
void set_wait_for_others(std::function<void(c10::function_ref<void()>)> function);

// Throws if the user asked to stop (Ctrl-C). Called between the steps of long work.
void check_interrupt();
void set_interrupt_check(std::function<void()> check);
// The same for places that are passed often: checks at most ten times a second on a thread.
void check_interrupt_if_due();

}  // namespace torch_cudnn_ext
