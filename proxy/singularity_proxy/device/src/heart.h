// One thread per process that says for every ring that the process is alive, also while a ring's own
// thread is busy with a long operation.
#pragma once

#include <mutex>
#include <set>

namespace singularity {

class RingServer;

class Heart {
 public:
  static Heart& one();
  void add(RingServer* ring);
  void remove(RingServer* ring);  // it is not touched any more when this returns

 private:
  void run();
  std::mutex mutex_;
  std::set<RingServer*> rings_;
  bool running_ = false;
};

}  // namespace singularity
