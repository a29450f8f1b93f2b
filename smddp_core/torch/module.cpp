// The Python module smdistributed.dataparallel._C.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "expendable.hpp"
#include "smddp/errors.hpp"
#include "smddp/flight_recorder.hpp"
#include "transport/interface.hpp"

namespace py = pybind11;

namespace smddp::torch_binding {
namespace {

// Class of smdistributed.dataparallel.exceptions for each kind of error.
const char* class_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::timeout:
      return "SMDDPTimeoutError";
    case ErrorKind::peer:
      return "SMDDPPeerError";
    case ErrorKind::mismatch:
      return "SMDDPMismatchError";
    case ErrorKind::aborted:
      return "SMDDPAbortedError";
    case ErrorKind::usage:
      return "SMDDPUsageError";
    case ErrorKind::system:
      break;
  }
  return "SMDDPError";
}

py::object exception_of(ErrorKind kind) {
  return py::module_::import("smdistributed.dataparallel.exceptions").attr(class_of(kind));
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const py::object type = exception_of(error.kind());
    // Some of it is other ranks' text.
    const std::string text = error.what();
    const auto message = py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    PyErr_SetObject(type.ptr(), message.ptr());
  }
}

Fallbacks make_fallbacks(const c10::intrusive_ptr<c10d::Store>& store, const Topology& topology, When gpu_exchange,
                         std::chrono::milliseconds timeout, const std::function<void()>& watch) {
  using One = Optional<c10::intrusive_ptr<BackendBase>>;
  using All = std::tuple<c10::intrusive_ptr<BackendBase>, One, One, bool>;
  const py::gil_scoped_acquire gil;
  const py::module_ module = py::module_::import("smdistributed.dataparallel.torch._fallbacks");
  const double seconds = std::chrono::duration<double>(timeout).count();
  try {
    const char* const wanted[] = {"auto", "always", "never"};
    const std::vector<int> rails = topology.has_rails() ? topology.local() : std::vector<int>();
    auto [host, device, local, exchange] = module
                                               .attr("fallbacks")(store, topology.rank, topology.size, seconds, watch,
                                                                  rails, wanted[static_cast<std::size_t>(gpu_exchange)])
                                               .cast<All>();
    const c10::intrusive_ptr<BackendBase> none;
    return {std::move(host), device.value_or(none), local.value_or(none), exchange};
  } catch (const py::error_already_set& error) {
    // Not a KeyboardInterrupt.
    if (!error.matches(PyExc_Exception)) throw;
    const auto text = py::str(error.value()).cast<std::string>();
    if (error.matches(exception_of(ErrorKind::usage))) throw UsageError(text);
    if (error.matches(PyExc_TimeoutError)) throw TimeoutError(text);
    throw std::runtime_error(text);
  }
}

std::string handling() {
  // A thread that Python does not know handles none of its exceptions.
  if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) return "";
  const py::gil_scoped_acquire gil;
  const py::error_scope callers;  // a group may be dropped while an error is being raised
  try {
    return py::module_::import("smdistributed.dataparallel.farewell").attr("handling")().cast<std::string>();
  } catch (const py::error_already_set&) {
    return "";  // groups end also where there is nothing to say
  }
}

c10::intrusive_ptr<BackendBase> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       double timeout_seconds, const std::string& name, const Settings& settings,
                                       std::vector<int> job_ranks, const std::string& refusal) {
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_seconds * 1000));
  return c10::make_intrusive<Backend>(store, rank, size,
                                      GroupOptions{timeout, name, settings, std::move(job_ranks), refusal},
                                      Interpreter{&make_fallbacks, &handling});
}

std::string address() {
  return choose_address(list_interfaces(), [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  });
}

Settings settings() { return Env::from_process().shared(); }

std::vector<std::pair<std::string, std::string>> interfaces() {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Interface& one : list_interfaces()) pairs.emplace_back(one.name, one.address);
  return pairs;
}

const Backend& ours(const c10::intrusive_ptr<BackendBase>& backend) {
  const auto* found = dynamic_cast<const Backend*>(backend.get());
  if (!found) throw UsageError("not an smddp process group");
  return *found;
}

void abort(const c10::intrusive_ptr<BackendBase>& backend) {
  auto* found = dynamic_cast<Backend*>(backend.get());
  if (!found) throw UsageError("not an smddp process group");
  found->abort();
}

std::string path(const c10::intrusive_ptr<BackendBase>& backend) { return ours(backend).path(); }
std::string stats(const c10::intrusive_ptr<BackendBase>& backend) { return ours(backend).stats(); }

// By kind of operation: calls, bytes, seconds in it, seconds in which somebody was blocked by it.
std::map<std::string, std::tuple<std::uint64_t, std::uint64_t, double, double>> totals() {
  std::map<std::string, std::tuple<std::uint64_t, std::uint64_t, double, double>> all;
  for (std::size_t i = 0; i < kOpKinds; ++i) {
    const OpCounters counters = process_counters(static_cast<OpKind>(i));
    all[name_of(static_cast<OpKind>(i))] = {counters.calls, counters.bytes, counters.seconds, counters.exposed_seconds};
  }
  return all;
}

std::string flight_recorder(const c10::intrusive_ptr<BackendBase>& backend) { return ours(backend).flight_recorder(); }

#if SMDDP_TORCH_AT_LEAST(2, 4)
// torch's own class cannot be copied by Python, as dist.split_group() does with the parent's options.
struct Options final : BackendBase::Options {
  explicit Options(const BackendBase::Options& others) : BackendBase::Options(others) {}
};
using OptionsPtr = c10::intrusive_ptr<Options>;

OptionsPtr copy_of(const BackendBase::Options& options) { return c10::make_intrusive<Options>(options); }

// Python's Backend of torch has no `options`; those of its own back ends have. Not every release has the class of
// options in Python, and a class must not be defined before the one that it is derived from.
void define_classes(py::module_& module) {
  if (!py::detail::get_type_info(typeid(BackendBase)) || !py::detail::get_type_info(typeid(BackendBase::Options)))
    return;
  py::class_<Options, BackendBase::Options, OptionsPtr>(module, "Options", "Timeout and names of a group.")
      .def("__copy__", [](const Options& self) { return copy_of(self); })
      .def("__deepcopy__", [](const Options& self, const py::dict&) { return copy_of(self); });
  py::class_<Backend, BackendBase, c10::intrusive_ptr<Backend>>(module, "ProcessGroupSMDDP", "A group of ranks.")
      .def_property_readonly("options", [](Backend& self) { return copy_of(*self.getBackendOptions()); });
}
#else
void define_classes(py::module_&) {}
#endif

}  // namespace
}  // namespace smddp::torch_binding

PYBIND11_MODULE(_C, module) {
  // pybind must know Store and Backend before functions that take them are defined.
  py::module_::import("torch.distributed");
  py::register_exception_translator(smddp::torch_binding::translate);
  module.doc() = "smddp: collectives over shared memory and TCP, as a torch.distributed backend";
  module.attr("__version__") = SMDDP_VERSION;
  module.attr("torch_version") = SMDDP_TORCH_VERSION;
  smddp::torch_binding::define_classes(module);
  module.def(
      "create", &smddp::torch_binding::create, py::arg("store"), py::arg("rank"), py::arg("size"),
      py::arg("timeout_seconds"), py::arg("name"), py::arg("settings") = smddp::Settings(),
      py::arg("job_ranks") = std::vector<int>(), py::arg("refusal") = "", py::call_guard<py::gil_scoped_release>(),
      "Meets the other ranks through `store` and returns the backend; `settings` are values for environment variables "
      "that are not set, `job_ranks` the job's number of each rank, for messages, `refusal` why this rank cannot "
      "take part: the error of all.");
  module.def("stop_all", &smddp::torch_binding::Backend::stop_all, py::arg("reason") = "",
             "Ends all groups, before the interpreter does. `reason` is told to the ranks that miss this one.");
  module.def("make_expendable", &smddp::torch_binding::make_expendable,
             "The calling thread may be left behind when the interpreter ends: it will not end the process.");
  module.def("address", &smddp::torch_binding::address, "The address of this machine that groups publish.");
  module.def("settings", &smddp::torch_binding::settings,
             "What a group made by this process as rank 0 would be set to, by the environment and the defaults.");
  module.def("expected_instead", &smddp::expected_instead, py::arg("name"), py::arg("value"),
             "What a setting accepts, if `value` is not that; empty if it is.");
  module.def("interfaces", &smddp::torch_binding::interfaces, "Name and address of each interface that is up.");
  module.def("abort", &smddp::torch_binding::abort, py::arg("backend"), py::call_guard<py::gil_scoped_release>(),
             "Ends a group's operations, on all ranks, with an error.");
  module.def("path", &smddp::torch_binding::path, py::arg("backend"), "How a group moves data, in words.");
  module.def("stats", &smddp::torch_binding::stats, py::arg("backend"), "Counters of a group, a JSON object.");
  module.def("totals", &smddp::torch_binding::totals,
             "What all groups of this process have done so far, by kind of operation: calls, bytes, seconds in it, "
             "seconds in which somebody was blocked by it.");
  module.def("flight_recorder", &smddp::torch_binding::flight_recorder, py::arg("backend"),
             "The last operations of a group, JSON lines.");
}
