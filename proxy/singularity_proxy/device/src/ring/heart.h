// Two threads per process. One says for every ring that the process is alive, also while a ring's own
// thread is busy with a long operation; it never waits for anything, because whoever stops beating is
// taken for dead. The other one publishes how much memory is in use: the device's allocator may let it
// wait for as long as an operation takes.
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
  struct Rings {
    std::mutex mutex;
    std::set<RingServer*> all;
  };
  void run(const char* name, Rings& rings, void (RingServer::*work)());
  Rings beating_, gauged_;
  bool running_ = false;  // guarded by beating_.mutex
};

}  // namespace singularity
