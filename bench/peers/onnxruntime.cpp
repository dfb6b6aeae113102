// ONNX Runtime, which has inference alone. PyPI has its library without headers, so it is called through Python, on the
// comparison's own buffers; what that costs a call, some microseconds, shows where a norm takes as little.
#define PY_SSIZE_T_CLEAN
#include "peer.hpp"

#include <Python.h>
#include <dlfcn.h>

#include <initializer_list>
#include <stdexcept>
#include <utility>

namespace {

using namespace peers;

/// A reference to a Python object, or an exception with Python's traceback printed.
class Object {
 public:
  explicit Object(PyObject* object) : object_(object, [](PyObject* o) { Py_XDECREF(o); }) {
    if (object) return;
    PyErr_Print();
    throw std::runtime_error("ONNX Runtime's Python has failed");
  }
  PyObject* get() const { return object_.get(); }

 private:
  std::shared_ptr<PyObject> object_;
};

const char* name_of(Norm norm) {
  switch (norm) {
    case Norm::layer_norm:
      return "layer_norm";
    case Norm::rms_norm:
      return "rms_norm";
    case Norm::batch_norm:
      return "batch_norm";
    case Norm::batch_norm_inference:
      return "batch_norm_inference";
    case Norm::group_norm:
      return "group_norm";
    case Norm::weight_norm:
      return "weight_norm";
  }
  return "";
}

class OnnxRuntime : public Peer {
 public:
  OnnxRuntime() : session_(start()) {}
  std::string name() const override { return "ONNXRuntime"; }
  std::string version() const override {
    const Object library(PyImport_ImportModule("onnxruntime"));
    return PyUnicode_AsUTF8(Object(PyObject_GetAttrString(library.get(), "__version__")).get());
  }

  Call prepare(const Operation& o, const Buffers& b) override {
    if (o.pass != Pass::forward || o.type != Type::float32) return {};
    const Object addresses(PyDict_New());
    for (const auto& [name, memory] :
         std::initializer_list<std::pair<const char*, void*>>{{"x", b.x},
                                                              {"weight", b.weight},
                                                              {"bias", b.bias},
                                                              {"running_mean", b.running_mean},
                                                              {"running_var", b.running_var},
                                                              {"y", b.y}})
      PyDict_SetItemString(addresses.get(), name, Object(PyLong_FromVoidPtr(memory)).get());
    const Object shape(o.space == 1 ? Py_BuildValue("(ll)", o.n, o.c) : Py_BuildValue("(lll)", o.n, o.c, o.space));
    const Object run(PyObject_CallMethod(session_.get(), "prepare", "sOlO", name_of(o.norm), shape.get(), o.groups,
                                         addresses.get()));
    if (run.get() == Py_None) return {};
    return {[run] { const Object done(PyObject_CallNoArgs(run.get())); }};
  }

 private:
  /// Python with the environment of the peers, and the module beside this file.
  static Object start() {
    // Python's own extension modules expect its symbols to be everybody's.
    dlopen(EVENKEEL_PEER_PYTHON, RTLD_NOW | RTLD_GLOBAL);
    Py_InitializeEx(0);
    for (const char* const folder : {EVENKEEL_PEER_PACKAGES, EVENKEEL_PEER_FOLDER})
      PyList_Insert(PySys_GetObject("path"), 0, Object(PyUnicode_FromString(folder)).get());
    PySys_SetObject("dont_write_bytecode", Py_True);
    return Object(PyImport_ImportModule("onnx_session"));
  }

  Object session_;
};

}  // namespace

extern "C" Peer* evenkeel_bench_peer() { return new OnnxRuntime; }
