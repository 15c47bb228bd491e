// Graphs that torch.compile captured in a worker. What they are and how they are compiled is Python's
// work (device/graphs.py); here is the way from a ring's thread into it.
#pragma once

#include <ATen/core/stack.h>
#include <Python.h>
#include <c10/core/Device.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace singularity {

class Graph {
 public:
  // Nothing is done before the first use: rebuilding a state defines many and uses few.
  Graph(std::string packed, c10::Device device) : packed_(std::move(packed)), device_(device) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  // All of these take the GIL: no lock that is ever waited for with the GIL may be held.
  void prepare();              // reads the graph and compiles it; the first time only
  std::string compile();       // and tells how it will run
  // Replaces the arguments by the results. `key` is the record's: equal keys need one look only.
  void run(torch::jit::Stack& stack, std::string key);
  // By argument, whether it writes into that; after prepare.
  const std::vector<bool>& writes() const { return writes_; }
  bool draws() const { return draws_; }  // random numbers from the default generator; after prepare

 private:
  const std::string packed_;
  const c10::Device device_;
  PyObject* graph_ = nullptr;
  PyObject* run_ = nullptr;
  bool draws_ = false;
  std::vector<bool> writes_;
  std::unordered_set<std::string> checked_;
};

// `make(packed, device)` gives the Python object behind a graph.
void set_graph_maker(PyObject* make);

}  // namespace singularity
