"""Round trip of 1+1 in a live ipykernel driven by jupyter_client: the peer of our execute. Prints milliseconds, one a line."""
import sys, time
from jupyter_client import KernelManager

km = KernelManager(kernel_name="python3")
km.start_kernel()
kc = km.client()
kc.start_channels()
kc.wait_for_ready(timeout=60)

def once():
    t = time.perf_counter()
    mid = kc.execute("1+1")
    while True:
        m = kc.get_iopub_msg(timeout=10)
        if m["parent_header"].get("msg_id") == mid and m["msg_type"] == "status" and m["content"]["execution_state"] == "idle":
            break
    while kc.get_shell_msg(timeout=10)["parent_header"].get("msg_id") != mid:
        pass
    return (time.perf_counter() - t) * 1000

for _ in range(30):
    once()
for _ in range(int(sys.argv[1])):
    print(once())
kc.stop_channels()
km.shutdown_kernel(now=True)
