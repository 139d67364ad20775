#include "core/caution.h"

#include <atomic>
#include <utility>

#include "core/errors.h"

namespace torch_cudnn_ext {

namespace {

std::function<std::string(const Device&)>& caution_of() {
  static auto* function = new std::function<std::string(const Device&)>();
  return *function;
}

std::function<void(const std::string&)>& sink() {
  static auto* function =
      new std::function<void(const std::string&)>([](const std::string& text) { warn(text); });
  return *function;
}

}  // namespace

bool set_caution(std::function<std::string(const Device&)> caution) {
  caution_of() = std::move(caution);
  return true;
}

void set_caution_sink(std::function<void(const std::string&)> function) {
  sink() = std::move(function);
}

std::string caution_for(const Device& device) {
  return device.is_cuda() && caution_of() ? caution_of()(device) : "";
}

void give_caution_once(const Device& device) {
  static std::atomic<bool> given{false};
  if (given) return;
  std::string text = caution_for(device);
  if (text.empty() || given.exchange(true)) return;
  sink()(text);
}

}  // namespace torch_cudnn_ext
