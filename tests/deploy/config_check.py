"""Whether our programs accept a configuration: they are started with it, and with something that is not there.

They read and check all of their options, and the cluster key, before they look for the device and open the model. A
gateway has neither key nor model: it reads and checks all of its options before it reads the authority of its router.
"""

import pathlib
import subprocess
import tempfile


def complaint(program, arguments):
    """What `program` finds wrong with `arguments`, or None. What they say of listen addresses, the cluster key and the model
    does not count: the files are made for this, and ports are free ones."""
    with tempfile.TemporaryDirectory() as folder:
        key = pathlib.Path(folder, "cluster.key")
        key.touch(0o600)
        key.write_text("0123456789abcdef0123456789abcdef")
        model = pathlib.Path(folder, "no-model.gguf")
        missing = f"cannot open {model}"
        replaced = {"model": model, "cluster-key": key, "listen": "0.0.0.0:0", "metrics-listen": "127.0.0.1:0"}
        if pathlib.Path(program).name == "runahead-gateway":
            missing = f"router_tls_ca: cannot read {model}"
            replaced = {"listen": "0.0.0.0:0", "metrics-listen": "127.0.0.1:0", "router-tls-ca": model}
        kept = [a for a in arguments if a.removeprefix("--").partition("=")[0] not in replaced]
        run = subprocess.run([program, *kept, *(f"--{flag}={value}" for flag, value in replaced.items())],
                             capture_output=True, text=True, timeout=60, check=False)
        # 1, not 2: nothing was wrong but that there is no such file, or no GPU here for a worker that is to have one.
        if run.returncode == 1 and (missing in run.stderr or "device: cuda was asked for, and" in run.stderr):
            return None
        return f"{' '.join(map(str, run.args))} ended with {run.returncode}: {run.stderr}"
