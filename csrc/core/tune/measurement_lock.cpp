#include "core/tune/measurement_lock.h"

#include <c10/util/Exception.h>
#include <c10/util/error.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

#include "core/errors.h"
#include "core/tune/time_budget.h"

namespace torch_cudnn_ext {

namespace {

std::mutex path_mutex;
std::string lock_path;

}  // namespace

void set_measurement_lock(const std::string& path) {
  std::lock_guard<std::mutex> lock(path_mutex);
  lock_path = path;
}

MeasurementLock::~MeasurementLock() {
  // A process that was forked meanwhile has the same open file and must not unlock it.
  if (taken_by_ == ::getpid()) ::flock(file_, LOCK_UN);
  if (file_ >= 0) ::close(file_);
}

double MeasurementLock::take() {
  if (file_ < 0 && !open()) return 0;
  auto start = SteadyClock::now();
  check_interrupt();  // an interrupt from before does not end the waiting
  while (::flock(file_, LOCK_EX) != 0) {
    TORCH_CHECK(errno == EINTR,
                "measure: cannot lock the lock file: ", c10::utils::str_error(errno));
    check_interrupt();
  }
  taken_by_ = ::getpid();
  return seconds_since(start);
}

void MeasurementLock::release() {
  ::flock(file_, LOCK_UN);
  taken_by_ = 0;
}

bool MeasurementLock::open() {
  std::lock_guard<std::mutex> lock(path_mutex);
  if (lock_path.empty()) return false;
  file_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  TORCH_CHECK(file_ >= 0, "measure: cannot open the lock file ", lock_path, ": ",
              c10::utils::str_error(errno));
  return true;
}

}  // namespace torch_cudnn_ext
