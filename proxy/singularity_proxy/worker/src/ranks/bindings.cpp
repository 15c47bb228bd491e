#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <ATen/Context.h>

#include "collectives_bindings.h"
#include "worker/src/tensors/device.h"
#include "profiler.h"
#include "worker/src/ring/settings.h"
#include "worker/src/calls/ship.h"
#include "worker/src/tensors/storage.h"
#include "store_guard.h"
#include "worker/src/ring/timing.h"

namespace singularity {
namespace {

namespace py = pybind11;

std::map<std::string, double> stats(int index) {
  Channel& c = channel(index);
  std::map<std::string, double> s{{"open", c.is_open()},
                                  {"async_records", static_cast<double>(c.async_records)},
                                  {"sync_records", static_cast<double>(c.sync_records)},
                                  {"sync_wait_ms", static_cast<double>(c.sync_wait_ns) / 1e6},
                                  {"records", static_cast<double>(c.seq)}};
  if (c.is_open()) {
    RingHeader* h = c.header();
    s["memory_current"] = static_cast<double>(h->memory_current.load());
    s["memory_peak"] = static_cast<double>(std::max(h->memory_peak.load(), h->memory_current.load()));
    s["memory_capacity"] = static_cast<double>(h->memory_capacity.load());
    s["generation"] = h->generation.load();
  }
  return s;
}

// What the proxy told of the physical device; all 0 and "" before one was attached.
py::dict device_facts(int index) {
  py::dict facts;
  const Channel& c = channel(index);
  const bool known = c.is_open() && c.header()->generation.load();
  const RingHeader* h = known ? c.header() : nullptr;
  facts["generation"] = h ? h->generation.load() : 0;  // how often a device was attached
  facts["name"] = h ? text_of(h->device_name) : "";
  facts["torch"] = h ? text_of(h->proxy_torch) : "";
  facts["memory"] = h ? h->device_memory.load() : 0;
  facts["cudnn_version"] = h ? h->cudnn_version.load() : 0;
  facts["capability"] = h ? h->capability.load() : 0;
  facts["multiprocessors"] = h ? h->multiprocessors.load() : 0;
  return facts;
}

// {"allocated": [small, large, all], ...} of {"current", "peak", "allocated", "freed"}.
py::dict memory_dict(int index) {
  const MemoryFigures figures = memory_figures(index);
  const auto as_list = [](const std::array<Usage::Figures, 3>& pools) {
    py::list list;
    for (const Usage::Figures& f : pools) {
      py::dict d;
      d["current"] = f.current;
      d["peak"] = f.peak;
      d["allocated"] = f.added;
      d["freed"] = f.removed;
      list.append(d);
    }
    return list;
  };
  py::dict all;
  all["allocated"] = as_list(figures.allocated);
  all["requested"] = as_list(figures.requested);
  all["reserved"] = as_list(figures.reserved);
  all["count"] = as_list(figures.count);
  all["out_of_memory"] = figures.out_of_memory;
  return all;
}

// Runs a captured graph. Takes the arguments out of their list, as a boxed call does, so that memory
// which only they held is given back as soon as possible.
py::list call_graph(const py::capsule& graph, const py::list& arguments) {
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  for (const py::handle& a : arguments) {
    if (THPVariable_Check(a.ptr())) stack.emplace_back(THPVariable_Unpack(a.ptr()));
    else stack.emplace_back(a.cast<int64_t>());
  }
  if (PyList_SetSlice(arguments.ptr(), 0, PyList_GET_SIZE(arguments.ptr()), nullptr)) throw py::error_already_set();
  ship(*graph.get_pointer<Operator>(), &stack);
  py::list results(stack.size());
  for (size_t i = 0; i < stack.size(); i++) {
    const c10::IValue& v = stack[i];
    PyObject* made = v.isTensor() ? THPVariable_Wrap(v.toTensor()) : v.isInt() ? PyLong_FromLongLong(v.toInt()) : Py_NewRef(Py_None);
    PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), made);
  }
  return results;
}

// C++ errors as the Python types that torch's own functions raise.
void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const py::builtin_exception&) {
    throw;
  } catch (py::error_already_set&) {
    throw;
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

}  // namespace

void bind_worker(py::module_& m) {
  py::register_local_exception_translator(&translate);
  m.def("set_open_ring", [](py::object callable, uint64_t main_thread) { set_open_ring(callable.ptr(), main_thread); });
  m.def("set_launch_blocking", &set_launch_blocking);
  m.def("install", &install);
  m.def("device_count", &device_count);
  m.def("initialize", [] { at::globalContext().lazyInitDevice(c10::kCUDA); });
  m.def("expected_device_count", &expected_device_count);
  m.def("virtual_device", &virtual_device);
  m.def("device_uuid", &device_uuid);
  m.def("choose_visible", [](const std::string& chosen, int count) { return choose_visible(chosen.c_str(), count); });
  m.def("current_device", &current_device);
  m.def("exchange_device", &exchange_device);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("start_profiler_for_host", &start_profiler_for_host);
  m.def("synchronize", &synchronize);
  m.def("stats", &stats);
  m.def("add_graph", [](const py::bytes& packed, uint16_t arguments, int device) {
    // Whoever can call the graph holds this object.
    return py::capsule(add_graph(packed, arguments, device), [](void* graph) { free_graph(*static_cast<Operator*>(graph)); });
  });
  m.def("compile_graph", [](const py::capsule& graph) { return compile_graph(*graph.get_pointer<Operator>()); });
  m.def("call_graph", &call_graph);
  m.def("resize_storage", [](const at::Tensor& tensor, uint64_t bytes) {
    resize_storage(tensor.storage().unsafeGetStorageImpl(), bytes);
  });
  m.def("slice_storage", [](const at::Tensor& tensor, int64_t start, uint64_t bytes) {
    return slice_storage(tensor.storage(), tensor.storage_offset() * tensor.element_size() + start, bytes);
  });
  m.def("time_round_trips", &time_round_trips);
  m.def("time_issue", &time_issue);
  m.def("stream_of", &stream_of);
  m.def("set_stream", &set_stream);
  m.def("open_ring", [](int index) { Locked lock(channel(index), false); });
  m.def("memory_figures", &memory_dict);
  m.def("memory_info", &memory_info);
  m.def("reset_peak_memory", &reset_peak_memory);
  m.def("reset_accumulated_memory", &reset_accumulated_memory);
  m.def("empty_cache", &empty_cache);
  m.def("settings_changed", &settings_changed);
  m.def("limit_memory", &limit_memory);
  m.def("get_benchmark_limit", [] { return at::globalContext().benchmarkLimitCuDNN(); });
  m.def("set_benchmark_limit", [](int limit) {
    at::globalContext().setBenchmarkLimitCuDNN(limit);
    settings_changed();
  });
  m.def("device_facts", &device_facts);
  m.def("guard_store", &store_guard::watch);
  m.def("guarded_stores_are_settled", &store_guard::is_settled);
  m.def("forget_guarded_stores", &store_guard::forget);
  m.def("is_open", [](int index) { return channel(index).is_open(); });
  m.def("default_generator", [](int index) {
    return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(default_generator(index)));
  });
  // Of events by their addresses, as torch.Event.event_id tells them; 0: never recorded.
  m.def("elapsed_between", [](uintptr_t first, uintptr_t second) {
    static const Event none;
    const auto at = [](uintptr_t address) -> const Event& { return address ? *reinterpret_cast<const Event*>(address) : none; };
    return elapsed_ms(at(first), at(second));
  });
  m.def("proxy_is_cpu", &proxy_is_cpu);
  m.def("pin_memory", &pin_memory);
  m.def("unpin_memory", &unpin_memory);
  m.def("bind_process_group", &bind_process_group);
}

}  // namespace singularity
