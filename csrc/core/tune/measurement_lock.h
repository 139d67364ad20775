// A lock on a file, so that only one of several processes runs and times plans on a device.
#pragma once

#include <sys/types.h>

#include <string>

namespace torch_cudnn_ext {

// Processes that measure on one device at the same time build plans concurrently, and hold a lock
// on this file while they run and time them. An empty path, the default, means that no other
// process measures.
void set_measurement_lock(const std::string& path);

class MeasurementLock {
 public:
  MeasurementLock() = default;
  ~MeasurementLock();
  MeasurementLock(const MeasurementLock&) = delete;
  MeasurementLock& operator=(const MeasurementLock&) = delete;

  // Waits for the lock if a file is set. Returns how many seconds that took.
  double take();
  void release();
  bool is_held() const { return taken_by_ != 0; }

 private:
  bool open();  // false if no file is set

  int file_ = -1;
  pid_t taken_by_ = 0;  // 0: not held
};

}  // namespace torch_cudnn_ext
