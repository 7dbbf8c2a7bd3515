#!/usr/bin/env python3
"""Checks the direction of includes and of CMake dependencies against the layers of docs/architecture.md, and that no two
types of the sources share a name.

usage: layering_test.py ROOT         check the tree at ROOT; exit 1 and one line per violation when there are any
       layering_test.py --self-test  check that every rule below can fail
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import tree_check  # noqa: E402, beside this file
import type_names  # noqa: E402

# A folder may include folders of lower layers, itself, and what SIDEWAYS lists. Subfolders that are not listed belong
# to the listed folder above them. Mains, factories and the files directly in ASSEMBLY folders stand above all.
LAYERS = {
    "proto": 0, "kernels/base": 0, "worker/format": 0,
    "kernels/cpu": 1, "kernels/cuda": 1,
    "scheduler/partition": 1, "scheduler/recompute": 1, "scheduler/batching": 1, "scheduler/placement": 1,
    "server/base": 1, "server/rpc": 1, "server/task": 1, "server/tokenizer": 1, "server/grammar": 1, "worker/metrics": 1,
    "server/engine": 2, "worker/model": 2, "worker/link": 2, "worker/kv": 2, "worker/handoff": 2,
    "worker/link/tcp": 2, "worker/link/message": 2, "worker/link/device": 2,
    "worker/prefill": 3, "worker/decode": 3, "worker/service": 3, "worker/prefill/service": 3,
    "worker/decode/service": 3, "worker/decode/kvpr": 3, "server/router": 3, "server/gateway": 3,
    "client/base": 3, "client/bench": 3, "client/cache": 3, "client/generate": 3, "client/health": 3, "client/models": 3, "client/keys": 3, "client/kvpr": 3, "client/measure": 3, "client/plan": 3,
    "client/profile": 3, "client/trace": 3, "client/up": 3,
}
ASSEMBLY = {"worker"}  # its main, in pieces
SIDEWAYS = {
    "server/rpc": {"scheduler/partition", "server/base", "server/grammar"},
    "server/task": {"server/base"},
    "server/tokenizer": {"server/base"},
    "server/grammar": {"server/base", "server/tokenizer"},
    "worker/metrics": {"scheduler/recompute", "server/base"},
    "scheduler/placement": {"scheduler/partition"},
    "worker/kv": {"worker/model"},
    "worker/handoff": {"worker/link", "worker/kv"},
    "worker/link/tcp": {"worker/link"},
    "worker/link/message": {"worker/link"},
    "worker/link/device": {"worker/link"},
    "worker/prefill/service": {"worker/prefill", "worker/service"},
    "worker/decode/service": {"worker/decode", "worker/service"},
    "worker/decode/kvpr": {"worker/decode"},
    "client/bench": {"client/base", "client/measure"},
    "client/cache": {"client/base"},
    "client/generate": {"client/base"},
    "client/health": {"client/base"},
    "client/models": {"client/base"},
    "client/keys": {"client/base"},
    "client/trace": {"client/base"},
    "client/up": {"client/base"},
    "client/kvpr": {"client/base"},
    "client/measure": {"client/base", "client/generate"},
    "client/plan": {"client/base", "client/measure"},
    "client/profile": {"client/base", "client/measure", "client/plan"},
}
SELF_CONTAINED = {"worker/format": {"kernels/base/escaped.h", "kernels/base/superblock.h", "kernels/base/weight_type.h"}}  # not even lower layers, but for these headers

GRPC_FOLDERS = {"proto", "server/rpc", "server/engine", "server/router", "server/gateway"}  # and all of client, and every folder named service
GRPC_INCLUDE = re.compile(r"^(grpc|grpcpp|grpc\+\+)/|\.grpc\.pb\.h$|^server/rpc/")
GRPC_TARGET = re.compile(r"^gRPC::|^runahead::(proto|server_rpc)$")

CONCRETE_DEVICE = re.compile(r"^kernels/(cpu|cuda)/(?!peer_comm\.h$)")  # that one is an interface
CONCRETE_LINK = re.compile(r"^worker/link/[a-z]+/")

# scheduler/* is pure: no device, thread or clock; time is an argument.
IMPURE = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|future|atomic|chrono|ctime|unistd\.h|sys/.*|pthread\.h"
    r"|absl/time/clock\.h|absl/synchronization/.*|kernels/base/(?!status_macros\.h$).*)$")

BARE_LOCK = re.compile(r"\bstd::(mutex|shared_mutex|recursive_mutex|condition_variable(_any)?|lock_guard|scoped_lock)\b"
                       r"|\babsl::(Mutex|CondVar)\b")
LOCK_FILE = "kernels/base/mutex.h"
SLOW_HEADERS = re.compile(r"^(CLI|spdlog|nlohmann)/")

SOURCE_FOLDERS = ("proto", "kernels", "scheduler", "server", "worker", "client")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def stands_above(path):
    """Mains and factories, which may name everything, concrete devices and links too."""
    name = os.path.basename(path)
    if re.search(r"(^|_)main\.cc$|factory(_[a-z0-9]+)?\.(h|cc)$", name):
        return True
    return os.path.dirname(path) in ASSEMBLY


def folder_of(path):
    """The listed folder that holds `path`, or None."""
    folder = os.path.dirname(path)
    while folder and folder not in LAYERS:
        folder = os.path.dirname(folder)
    return folder or None


def may_use(folder, other):
    """Whether files of `folder` may include or link `other`."""
    if folder == other or other in SIDEWAYS.get(folder, ()):
        return True
    return folder not in SELF_CONTAINED and LAYERS[other] < LAYERS[folder]


def may_use_grpc(folder):
    return folder in GRPC_FOLDERS or folder.startswith("client/") or folder.split("/")[-1] == "service"


class Checker:
    def __init__(self, root):
        self.root = root
        self.violations = []
        self.files = []
        for top in SOURCE_FOLDERS + ("tests",):
            for folder, subfolders, names in os.walk(os.path.join(root, top)):
                subfolders[:] = sorted(s for s in subfolders if not s.startswith((".", "__")))
                self.files += [os.path.relpath(os.path.join(folder, name), root) for name in sorted(names)]
        self.known = set(self.files)

    def complain(self, path, line, message):
        self.violations.append(f"{path}:{line}: {message}")

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
            return file.read()

    def run(self):
        for path in self.files:
            if path.endswith((".h", ".cc", ".cu", ".cuh")):
                self.check_source(path)
        self.check_cmake()
        self.check_type_names()
        return self.violations

    def check_type_names(self):
        sources = [f for f in self.files if f.endswith((".h", ".cc", ".cu", ".cuh")) and not f.startswith("tests/")]
        for path, name, other in type_names.shared_names({path: self.read(path) for path in sources}):
            self.complain(path, 1, f"the type {name} has its name from another, in {other}")

    def check_source(self, path):
        in_tests = path.startswith("tests/")
        folder = folder_of(path)
        if not in_tests and folder is None and not stands_above(path):
            self.complain(path, 1, "is in no folder of LAYERS, and neither a main nor a factory")
            return
        for number, line in enumerate(self.read(path).split("\n"), 1):
            code = line.split("//")[0]
            if path != LOCK_FILE and not in_tests and BARE_LOCK.search(code):
                self.complain(path, number, f"a lock that -Wthread-safety does not see: use {LOCK_FILE}")
            match = INCLUDE.match(line)
            if match is None:
                continue
            quoted, name = match.group(1) == '"', match.group(2)
            self.check_everywhere(path, number, quoted, name)
            if not in_tests:
                self.check_include(path, number, folder, name)

    def check_everywhere(self, path, number, quoted, name):
        if name == "ranges":
            self.complain(path, number, "<ranges> does not compile with clang 14")
        if path.endswith(".h") and SLOW_HEADERS.match(name):
            self.complain(path, number, f"{name} is slow to compile: keep it out of headers")
        beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if quoted and name not in self.known and (beside in self.known or name.split("/")[0] in SOURCE_FOLDERS):
            self.complain(path, number, f'"{name}" is no file below the root: includes are root-relative')

    def check_include(self, path, number, folder, name):
        if name.startswith("tests/"):
            self.complain(path, number, "sources never include tests")
            return
        if folder is not None and folder.startswith("scheduler/") and IMPURE.match(name):
            self.complain(path, number, f"scheduler/* is pure (no device, thread, clock), so not {name}")
        if stands_above(path):
            return
        self.check_concrete(path, number, folder, name)
        if GRPC_INCLUDE.search(name) and not may_use_grpc(folder):
            self.complain(path, number, f"{folder} is built without gRPC, so not {name}")
        generated = name.startswith("runahead/v1/")
        other = "proto" if generated else folder_of(name)
        if other is None or not (generated or name in self.known):
            return  # not ours
        if not may_use(folder, other) and name not in SELF_CONTAINED.get(folder, ()):
            self.complain(path, number, self.upward(folder, other))

    def check_concrete(self, path, number, folder, name):
        if CONCRETE_DEVICE.match(name) and not path.startswith("kernels/"):
            self.complain(path, number, f"only mains and factories name a concrete device, so not {name}")
        if CONCRETE_LINK.match(name) and folder != os.path.dirname(name):
            self.complain(path, number, f"only mains and factories name a concrete link, so not {name}")

    @staticmethod
    def upward(folder, other):
        if folder in SELF_CONTAINED:
            return f"{folder} depends on no other folder, so not on {other}"
        return f"{folder} (layer {LAYERS[folder]}) must not depend on {other} (layer {LAYERS[other]})"

    def check_cmake(self):
        calls = []  # (path, line, command, arguments)
        for path in self.files:
            if os.path.basename(path) != "CMakeLists.txt" or path.startswith("tests/"):
                continue
            text = re.sub(r"#[^\n]*", "", self.read(path))
            for match in re.finditer(r"\b(runahead_library|runahead_binary|target_link_libraries|add_library)\s*\(([^)]*)\)",
                                     text):
                line = text.count("\n", 0, match.start()) + 1
                calls.append((path, line, match.group(1), match.group(2).split()))
        homes = {}
        for path, _, command, arguments in calls:
            if command in ("runahead_library", "add_library") and arguments and folder_of(path) is not None:
                homes["runahead::" + arguments[0].removeprefix("runahead_")] = folder_of(path)
        for path, line, command, arguments in calls:
            folder = folder_of(path)
            if command in ("runahead_library", "target_link_libraries") and folder is not None and arguments:
                self.check_links(path, line, folder, arguments, homes)

    def check_links(self, path, line, folder, arguments, homes):
        if "runahead::" + arguments[0].removeprefix("runahead_") not in homes:
            return  # a binary: stands above all
        for target in arguments[1:]:
            if GRPC_TARGET.match(target) and not may_use_grpc(folder):
                self.complain(path, line, f"{folder} is built without gRPC, so not {target}")
            elif target in homes and not may_use(folder, homes[target]):
                self.complain(path, line, f"{self.upward(folder, homes[target])}: {target}")


CLEAN = {
    "proto/CMakeLists.txt": "add_library(runahead_proto STATIC x.cc)\n",
    "kernels/base/mutex.h": "#include <mutex>\nstd::mutex mu;\n",
    "kernels/base/status_macros.h": "",
    "kernels/base/device.h": "",
    "kernels/base/CMakeLists.txt": "runahead_library(kernels_base SRCS a.cc DEPS absl::status)\n",
    "kernels/cpu/cpu_device.h": '#include "kernels/base/device.h"\n',
    "kernels/cpu/simd/avx.h": '#include "kernels/cpu/cpu_device.h"\n',
    "scheduler/partition/table.h": '#include "absl/time/time.h"\n#include "kernels/base/status_macros.h"\n',
    "scheduler/placement/plan.h": '#include "scheduler/partition/table.h"\n',
    "server/base/clock.h": '#include "kernels/base/mutex.h"\n',
    "server/base/CMakeLists.txt": "runahead_library(server_base SRCS a.cc DEPS runahead::kernels_base)\n",
    "server/base/logging.cc": "#include <spdlog/spdlog.h>\n",
    "server/rpc/server.h": '#include <grpcpp/server.h>\n#include "server/base/clock.h"\n',
    "server/rpc/CMakeLists.txt": "runahead_library(server_rpc SRCS a.cc DEPS runahead::server_base gRPC::grpc++)\n",
    "server/router/router.h": '#include "runahead/v1/inference.grpc.pb.h"\n#include "server/rpc/server.h"\n',
    "worker/format/gguf.h": '#include "kernels/base/weight_type.h"\n',
    "kernels/base/weight_type.h": "#include <cstdint>\n",
    "worker/format/CMakeLists.txt": "runahead_library(worker_format SRCS a.cc DEPS absl::status)\n",
    "worker/model/model.h": '#include "worker/format/gguf.h"\n// std::mutex would be wrong here\n',
    "worker/link/edge.h": '#include "kernels/base/device.h"\n',
    "kernels/cuda/peer_comm.h": '#include "kernels/base/device.h"\n',
    "worker/link/device_edge.h": '#include "kernels/cuda/peer_comm.h"\n',
    "worker/link/tcp/tcp_engine.h": '#include "worker/link/edge.h"\n',
    "worker/kv/store.h": '#include "worker/model/model.h"\n#include "server/base/clock.h"\n',
    "worker/kv/CMakeLists.txt": "runahead_library(worker_kv SRCS a.cc DEPS runahead::server_base)\n",
    "worker/handoff/message_sender.cc": '#include "worker/kv/store.h"\n#include "worker/link/edge.h"\n',
    "worker/prefill/stage.h": '#include "worker/link/edge.h"\n',
    "worker/prefill/service/service.h": '#include <grpcpp/server.h>\n#include "worker/prefill/stage.h"\n',
    "worker/decode/engine.h": '#include "worker/kv/store.h"\n',
    "worker/main.cc": '#include "kernels/cpu/cpu_device.h"\n#include "worker/decode/engine.h"\n',
    "worker/device_factory.cc": '#include "kernels/cpu/cpu_device.h"\n',
    "worker/options.h": '#include "server/rpc/server.h"\n#include "worker/prefill/stage.h"\n#include "xxhash.h"\n',
    "client/base/connection.cc": '#include "server/rpc/server.h"\n',
    "client/up/up.h": '#include "client/base/connection.h"\n',
    "client/base/connection.h": "",
    "server/router/session.h": "namespace runahead {\nclass Session final : public A {\n struct Plan {};\n};\n}\n",
    "server/router/session.cc": "namespace runahead {\nnamespace {\nstruct Row { int i; };\n}\n}\n",
    "worker/kv/rows.cc": "namespace runahead {\nnamespace {\nstruct Row {};\nstruct Plan {};\n}\nclass Session;\n}\n",
    "tests/testing/fake.h": '#include "server/base/clock.h"\n',
    "tests/worker/kv/store_test.cc": '#include "gtest/gtest.h"\n#include "tests/testing/fake.h"\n',
}

# (file, what is appended to it, what the complaint must say)
BROKEN = [
    ("kernels/base/device.h", '#include "server/base/clock.h"', "kernels/base (layer 0) must not depend on server/base"),
    ("kernels/cpu/cpu_device.h", '#include "server/base/clock.h"', "kernels/cpu (layer 1) must not depend on server/base"),
    ("kernels/cpu/simd/avx.h", '#include "worker/model/model.h"', "kernels/cpu (layer 1) must not depend on worker/model"),
    ("server/base/clock.h", '#include "server/rpc/server.h"', "server/base (layer 1) must not depend on server/rpc"),
    ("scheduler/partition/table.h", '#include "scheduler/placement/plan.h"', "must not depend on scheduler/placement"),
    ("worker/model/model.h", '#include "worker/kv/store.h"', "worker/model (layer 2) must not depend on worker/kv"),
    ("worker/kv/store.h", '#include "worker/link/edge.h"', "worker/kv (layer 2) must not depend on worker/link"),
    ("worker/prefill/stage.h", '#include "worker/decode/engine.h"', "must not depend on worker/decode"),
    ("worker/decode/engine.h", '#include "worker/prefill/stage.h"', "must not depend on worker/prefill"),
    ("worker/prefill/service/service.h", '#include "worker/decode/engine.h"', "must not depend on worker/decode"),
    ("worker/prefill/stage.h", '#include "worker/prefill/service/service.h"', "must not depend on worker/prefill/service"),
    ("client/up/up.h", '#include "server/router/router.h"', "client/up (layer 3) must not depend on server/router"),
    ("client/base/connection.cc", '#include "client/up/up.h"', "client/base (layer 3) must not depend on client/up"),
    ("worker/format/gguf.h", '#include "kernels/base/status_macros.h"', "worker/format depends on no other folder"),
    ("worker/format/gguf.h", '#include "runahead/v1/worker.pb.h"', "worker/format depends on no other folder"),
    ("worker/kv/store.h", "#include <grpcpp/server.h>", "worker/kv is built without gRPC"),
    ("worker/decode/engine.h", '#include "runahead/v1/worker.grpc.pb.h"', "worker/decode is built without gRPC"),
    ("worker/model/model.h", '#include "server/rpc/server.h"', "worker/model is built without gRPC"),
    ("worker/handoff/message_sender.cc", "#include <grpcpp/channel.h>", "worker/handoff is built without gRPC"),
    ("scheduler/partition/table.h", "#include <thread>", "scheduler/* is pure"),
    ("scheduler/partition/table.h", '#include "absl/time/clock.h"', "scheduler/* is pure"),
    ("scheduler/partition/table.h", '#include "kernels/base/device.h"', "scheduler/* is pure"),
    ("worker/decode/engine.h", '#include "kernels/cpu/cpu_device.h"', "only mains and factories name a concrete device"),
    ("worker/prefill/stage.h", '#include "worker/link/tcp/tcp_engine.h"', "only mains and factories name a concrete link"),
    ("worker/kv/store.h", '#include "tests/testing/fake.h"', "sources never include tests"),
    ("worker/kv/store.h", "#include <ranges>", "<ranges>"),
    ("tests/worker/kv/store_test.cc", "#include <ranges>", "<ranges>"),
    ("server/base/clock.h", "#include <spdlog/spdlog.h>", "slow to compile"),
    ("worker/kv/store.h", "std::mutex mu_;", "-Wthread-safety"),
    ("worker/kv/store.h", "absl::Mutex mu_;", "-Wthread-safety"),
    ("worker/link/edge.h", '#include "worker/link/tcp/tcp_engine.h"', "only mains and factories name a concrete link"),
    ("worker/link/tcp/tcp_engine.h", '#include "tcp_engine.h"', "root-relative"),
    ("worker/kv/store.h", '#include "worker/kv/gone.h"', "root-relative"),
    ("worker/cache/cache.h", "", "in no folder of LAYERS"),
    ("server/stray.cc", "", "in no folder of LAYERS"),
    ("server/gate/gate.h", "", "in no folder of LAYERS"),
    ("server/gateway/gateway.h", '#include "server/router/session.h"', "server/gateway (layer 3) must not depend on server/router"),
    ("kernels/base/CMakeLists.txt", "target_link_libraries(runahead_kernels_base PUBLIC runahead::server_base)",
     "kernels/base/CMakeLists.txt:2: kernels/base (layer 0) must not depend on server/base"),
    ("worker/kv/CMakeLists.txt", "runahead_library(worker_kv2 SRCS b.cc DEPS gRPC::grpc++)", "built without gRPC"),
    ("worker/kv/CMakeLists.txt", "runahead_library(worker_kv2 SRCS b.cc DEPS runahead::server_rpc)", "built without gRPC"),
    ("worker/kv/store.h", "namespace runahead {\nstruct Session {};\n}", "has its name from another"),
    ("worker/kv/rows.cc", "namespace runahead {\nnamespace {\nenum class Session { kA };\n}\n}", "has its name from another"),
    ("worker/kv/store.h", "namespace runahead {\nusing Session = int;\n}", "has its name from another"),
    ("worker/kv/store.h", "namespace runahead {\ntypedef int Session;\n}", "has its name from another"),
    ("worker/kv/store.h", "namespace runahead {\nstruct [[nodiscard]] Session {};\n}", "has its name from another"),
    ("worker/format/CMakeLists.txt", "runahead_library(worker_f SRCS b.cc\n DEPS runahead::kernels_base)",
     "worker/format depends on no other folder"),
]


if __name__ == "__main__":
    sys.exit(tree_check.main(sys.argv[1:], __doc__, lambda root: Checker(root).run(), CLEAN, BROKEN))
