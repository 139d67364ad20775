#include "core/errors.h"

#include <c10/util/Exception.h>

#include <chrono>

namespace torch_cudnn_ext {

namespace {

std::function<void(const std::string&)>& message_sink() {
  static auto* function = new std::function<void(const std::string&)>();
  return *function;
}

std::function<void()>& interrupt_check() {
  static auto* function = new std::function<void()>();
  return *function;
}

std::function<void(c10::function_ref<void()>)>& wait_function() {
  static auto* function = new std::function<void(c10::function_ref<void()>)>();
  return *function;
}

}  // namespace

bool is_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         error.msg().find("DefaultCPUAllocator") != std::string::npos;
}

void check_interrupt() {
  if (interrupt_check()) interrupt_check()();
}

void check_interrupt_if_due() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kInterval(100);
  static thread_local Clock::time_point last;
  Clock::time_point now = Clock::now();
  if (now - last < kInterval) return;
  last = now;
  check_interrupt();
}

void set_interrupt_check(std::function<void()> check) { interrupt_check() = std::move(check); }

void wait_for_others(c10::function_ref<void()> waiting) {
  if (wait_function()) {
    wait_function()(waiting);
  } else {
    waiting();
  }
}

void set_wait_for_others(std::function<void(c10::function_ref<void()>)> function) {
  wait_function() = std::move(function);
}

void warn(const std::string& message) {
  if (message_sink()) {
    message_sink()(message);
  } else {
    TORCH_WARN(message);
  }
}

void set_warning_sink(std::function<void(const std::string&)> new_sink) {
  message_sink() = std::move(new_sink);
}

}  // namespace torch_cudnn_ext
