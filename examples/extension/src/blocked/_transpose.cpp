// blocked._transpose: transposes a matrix of doubles in tiles that fit into the first-level cache.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstring>

namespace {

constexpr Py_ssize_t kTile = 16;  // two tiles of 16 × 16 doubles are 4 KiB; a row of one is two cache lines

void transpose_blocked(const double* source, double* target, Py_ssize_t rows, Py_ssize_t columns) {
  for (Py_ssize_t row = 0; row < rows; row += kTile) {
    const Py_ssize_t row_end = std::min(row + kTile, rows);
    for (Py_ssize_t column = 0; column < columns; column += kTile) {
      const Py_ssize_t column_end = std::min(column + kTile, columns);
      for (Py_ssize_t j = column; j < column_end; ++j)
        for (Py_ssize_t i = row; i < row_end; ++i) target[j * rows + i] = source[i * columns + j];
    }
  }
}

// A contiguous buffer of doubles, released at the end of the scope.
class Doubles {
 public:
  ~Doubles() {
    if (held_) PyBuffer_Release(&view_);
  }
  // Returns false with a Python exception set.
  bool acquire(PyObject* object, const char* name, int flags, Py_ssize_t rows, Py_ssize_t columns) {
    if (PyObject_GetBuffer(object, &view_, flags | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) return false;
    held_ = true;
    if (view_.format == nullptr || std::strcmp(view_.format, "d") != 0) {
      PyErr_Format(PyExc_TypeError, "transpose: %s must hold doubles", name);
      return false;
    }
    const Py_ssize_t count = view_.len / static_cast<Py_ssize_t>(sizeof(double));
    if (rows != 0 && (count % rows != 0 || count / rows != columns)) {
      PyErr_Format(PyExc_ValueError, "transpose: %s holds %zd values, not %zd x %zd", name, count, rows, columns);
      return false;
    }
    return true;
  }
  double* data() const { return static_cast<double*>(view_.buf); }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

PyObject* transpose(PyObject*, PyObject* args) {
  PyObject *source_object = nullptr, *target_object = nullptr;
  Py_ssize_t rows = 0, columns = 0;
  if (!PyArg_ParseTuple(args, "OOnn:transpose", &source_object, &target_object, &rows, &columns)) return nullptr;
  if (rows < 1 || columns < 1) {
    PyErr_SetString(PyExc_ValueError, "transpose: rows and columns must be positive");
    return nullptr;
  }
  Doubles source, target;
  if (!source.acquire(source_object, "source", PyBUF_SIMPLE, rows, columns)) return nullptr;
  if (!target.acquire(target_object, "target", PyBUF_WRITABLE, rows, columns)) return nullptr;
  Py_BEGIN_ALLOW_THREADS
  transpose_blocked(source.data(), target.data(), rows, columns);
  Py_END_ALLOW_THREADS
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"transpose", transpose, METH_VARARGS,
     "transpose(source, target, rows, columns): write the transpose of source, rows x columns doubles, to target."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_transpose", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__transpose() { return PyModuleDef_Init(&module); }
