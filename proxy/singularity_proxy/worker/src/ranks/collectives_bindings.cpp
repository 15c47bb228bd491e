// torch.distributed.ProcessGroupNCCL, in Python.
#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>

#include "collectives.h"
#include "collectives_bindings.h"

namespace singularity {
namespace {

namespace py = pybind11;

// DistributedDataParallel times its steps with a timer of its device: there is none in a CPU build,
// and a CUDA build's opens the driver.
struct UntimedSteps final : c10d::Timer {
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

}  // namespace

void bind_process_group(py::module_& c10d) {
  using Group = ProxiedGroup;
  using Options = GroupOptions;
  using std::chrono::milliseconds;
  c10d::TimerRegistry()->Register(
      c10::kCUDA, [](c10::Device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<UntimedSteps>(); },
      c10::REGISTRY_PREFERRED);

  // Whoever drops the last reference may hold the GIL: leaving a group waits for nothing.
  py::class_<Group, c10::intrusive_ptr<Group>, c10d::Backend> group(c10d, "ProcessGroupNCCL");
  py::class_<Options::Config>(group, "NCCLConfig", py::dynamic_attr())
      .def(py::init<>())
      .def_readwrite("blocking", &Options::Config::blocking)
      .def_readwrite("cga_cluster_size", &Options::Config::cga_cluster_size)
      .def_readwrite("min_ctas", &Options::Config::min_ctas)
      .def_readwrite("max_ctas", &Options::Config::max_ctas)
      .def_readwrite("split_share", &Options::Config::split_share)
      .def_readwrite("net_name", &Options::Config::net_name);
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(group, "Options")
      .def(py::init<bool>(), py::arg("is_high_priority_stream") = false)
      .def_readwrite("config", &Options::config)
      .def_readwrite("is_high_priority_stream", &Options::is_high_priority_stream)
      .def_readwrite("split_from", &Options::split_from)
      .def_readwrite("split_color", &Options::split_color)
      .def_readwrite("global_ranks_in_group", &Options::global_ranks_in_group)
      .def_readwrite("group_name", &Options::group_name)
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def("__deepcopy__", [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); });

  const auto nothing = py::call_guard<py::gil_scoped_release>();
  group
      .def(py::init<c10::intrusive_ptr<c10d::Store>, int, int, c10::intrusive_ptr<Options>>(), py::arg("store"), py::arg("rank"),
           py::arg("size"), py::arg("options"), nothing)
      .def(py::init([](c10::intrusive_ptr<c10d::Store> store, int rank, int size, milliseconds timeout) {
             auto options = c10::make_intrusive<Options>();
             options->timeout = timeout;
             return c10::make_intrusive<Group>(std::move(store), rank, size, std::move(options));
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout") = milliseconds(Options::kTimeout), nothing)
      .def_property_readonly("options", &Group::options)
      .def_property_readonly("uid", &Group::getID)
      .def("_is_initialized", &Group::is_joined)
      .def("_set_default_timeout", &Group::setTimeout, py::arg("timeout"), nothing)
      // NCCL makes a group out of another one, and ends several at once; neither takes a step of its own here.
      .def("perform_nocolor_split", [](Group&, const at::Device&) {}, py::arg("device"))
      .def("comm_split_count", [](Group&) { return 0; })
      .def("_group_start", [](Group&) {})
      .def("_group_end", [](Group&) {});
}

}  // namespace singularity
