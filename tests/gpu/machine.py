"""What this machine has: its GPU, the C library, the libraries of CUDA and NCCL, tools. As a program: exit code 0 where
a process can use the GPU; else it says why not."""
import ctypes
import glob
import os
import shutil
import subprocess
import sys
import tempfile

PROBE_S = 30  # for a GPU to answer


def missing_gpu():
    """Why no program here can use a GPU; None where one can. Asks the driver, as the binaries do."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver is here (libcuda.so.1)"
    code = driver.cuInit(0)
    if code != 0:
        return f"the NVIDIA driver does not start (cuInit returned {code}, where 100 is: no GPU)"
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value < 1:
        return "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES?)"
    return None


def first_gpu():
    """Name, memory and versions of GPU 0, from the driver; missing_gpu() was None."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuInit(0)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, 256, 0)
    total, version, major, minor = ctypes.c_size_t(0), ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)
    return {"name": name.value.decode(), "memory_mib": total.value >> 20,
            "compute": f"{major.value}.{minor.value}",
            "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}", "driver": smi("driver_version")}


def use_gpu():
    """Makes a context and waits for it: why that fails, None where it works. Leaves the context behind."""
    why = missing_gpu()
    if why:
        return why
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    for name, arguments in (("cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0)),
                            ("cuCtxPushCurrent_v2", (context,)), ("cuCtxSynchronize", ())):
        code = getattr(driver, name)(*arguments)
        if code != 0:
            return f"{name} returned {code}"
    return None


def lost_gpu():
    """Why no new process can use the GPU any more; None where one can."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        process = subprocess.Popen([sys.executable, os.path.abspath(__file__)], stdout=said)
        try:
            if process.wait(PROBE_S) == 0:
                return None
        except subprocess.TimeoutExpired:
            process.kill()  # and not waited for: what the driver holds may never be gone
            return f"it does not answer within {PROBE_S} s"
        said.seek(0)
        return said.read().strip() or f"asking it ended with exit code {process.returncode}"


def glibc():
    """Version of the C library ("2.36"); "" where it is another."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return ""
    return version if name == "glibc" else ""


def smi(fields):
    """What nvidia-smi says of GPU 0 ("driver_version,clocks.sm"); "" where it says nothing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        asked = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


def shm_mib():
    """Free shared memory; None where there is none."""
    try:
        space = os.statvfs("/dev/shm")
    except OSError:
        return None
    return space.f_bavail * space.f_frsize >> 20


def cuda_folders():
    roots = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    return [root for root in roots + sorted(glob.glob("/usr/local/cuda-*"), reverse=True) if root]


def library_folders():
    """Where CUDA's libraries and NCCL may lie, the likeliest first, but for the dynamic linker's own folders."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if "NCCL_HOME" in os.environ:
        folders.append(os.path.join(os.environ["NCCL_HOME"], "lib"))
    for path in sys.path:  # the wheels that come with PyTorch: beside it, and of the same versions
        folders += sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")), reverse=True)
    for root in cuda_folders():
        folders += [os.path.join(root, "lib64"), os.path.join(root, "targets/x86_64-linux/lib")]
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def find_libraries(names):
    """{name: path}; "" for those that nobody has, the bare name for those that the dynamic linker finds by itself."""
    folders, found = library_folders(), {}
    for name in names:
        paths = [os.path.join(folder, name) for folder in folders]
        found[name] = next((path for path in paths if os.path.exists(path)), "")
        if found[name] == "":
            try:
                ctypes.CDLL(name)
                found[name] = name
            except OSError:
                pass
    return found


def find_tool(name, *below):
    """A program of CUDA's: on the PATH, or at one of the paths `below` the toolkit's folder; None where it is not."""
    candidates = [os.path.join(root, path) for root in cuda_folders() for path in below]
    return shutil.which(name) or next((path for path in candidates if os.access(path, os.X_OK)), None)


if __name__ == "__main__":
    reason = use_gpu()
    if reason:
        print(reason)
    sys.exit(1 if reason else 0)
