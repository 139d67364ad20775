// _C: registers all functions, translates C++ errors, and answers what the core asks of Python.
#include <pybind11/pybind11.h>

#include <chrono>
#include <thread>

#include "core/caution.h"
#include "core/errors.h"
#include "core/select/plan_store.h"
#include "python/bindings.h"
#include "python/direct_call.h"
#include "python/fast_call.h"
#include "replay/replay.h"
#include "torch/overrides.h"
#include "torch/python_internals.h"
#include "torch/registration.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

// C++ errors as the Python errors that they mean, without a C++ backtrace in the message.
void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const c10::ValueError& error) {
    PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(),
                    error.what_without_backtrace());
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

void install_hooks() {
  set_warning_sink([](const std::string& message) {
    py::gil_scoped_acquire acquire;
    py::module_::import("torch_cudnn_ext._warning").attr("warn")(message);
  });
  set_caution_sink([](const std::string& message) {
    py::gil_scoped_acquire acquire;
    py::module_::import("torch_cudnn_ext._warning").attr("warn_of_version")(message);
  });
  set_interrupt_check([] {
    // Signals are for Python's main thread; one that Python does not know may be joined by who
    // holds the lock.
    if (Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) return;
    py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  });
  set_wait_for_others([](c10::function_ref<void()> waiting) {
    bool known = Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr;
    std::optional<py::gil_scoped_release> released;
    if (known && PyGILState_Check() != 0) released.emplace();
    waiting();
  });
  // torch.cuda.synchronize() gives Python's lock up just before it waits, and has begun to after a
  // moment. Threads that Python does not know may be joined by who holds the lock, and without a
  // lock nothing is recorded.
  set_recording_alone([](c10::function_ref<void()> recording) {
#ifndef Py_GIL_DISABLED
    bool known = Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr;
    if (!known || Py_IsFinalizing() != 0) return;
    py::gil_scoped_acquire alone;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    recording();
#endif
  });
}

}  // namespace

std::optional<std::string> value_error_text(std::exception& error) {
  if (auto* native = dynamic_cast<c10::ValueError*>(&error)) {
    return native->what_without_backtrace();
  }
  auto* python = dynamic_cast<PythonError*>(&error);
  if (python == nullptr) return std::nullopt;
  py::gil_scoped_acquire acquire;
  python->persist();  // out of the interpreter, if it is still there
  // Ours are of that very class and begin so; a user's, of a hook or a mode, is not taken for one.
  bool is_ours =
      python->type == PyExc_ValueError && python->message.rfind("torch_cudnn_ext::", 0) == 0;
  return is_ours ? std::optional<std::string>(python->message) : std::nullopt;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::register_local_exception_translator(translate);
  install_hooks();
  register_kernels_of_writers();
  bind_problems(m);
  bind_policies(m);
  bind_tuning(m);
  bind_running(m);
  bind_isolation(m);
  bind_tuning_store(m);
  bind_devices(m);
  bind_libraries(m);
  bind_direct_calls(m);
  install_fast_calls();
  py::module_::import("atexit").attr("register")(py::cpp_function(leak_plans_at_exit));
}

}  // namespace torch_cudnn_ext
