package attack

// prelude gives the rows short words. err(f) is the name of the errno that f
// fails with, "ok" if it does not.
const prelude = `
import ctypes, errno, os, socket, stat, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def err(f, *a):
    try: f(*a); return "ok"
    except OSError as e: return errno.errorcode.get(e.errno, str(e.errno))
def sysc(*a):
    ctypes.set_errno(0)
    r = libc.syscall(*[ctypes.c_long(x) if isinstance(x, int) else x for x in a])
    return "ok" if r >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")
def rd(p, n=64):
    with open(p, "rb") as f: return f.read(n)
def refused(*results): print("open" if "ok" in results else "refused")
`

// The rows follow the corpus of hostile behaviours: FS host files, PROC /proc and
// /sys, DEV devices, KRN kernel surface, PRV privilege, NET network.
var attacks = []struct{ id, code, want string }{
	{"FS-1 host secrets by path", "refused(err(rd,'@FILE@'), err(rd,'/root/.ssh/id_rsa'), err(rd,'/var/run/docker.sock'), err(rd,'/etc/shadow'))", "refused"},
	{"FS-2 climb out of the root", "refused(err(rd,'/proc/1/root@FILE@'), err(rd,'/proc/self/root/../..@FILE@'), err(rd,'../../../../..@FILE@'), err(rd,'/proc/1/cwd@FILE@'))", "refused"},
	{"FS-3 chroot and fchdir up", "print(err(os.chroot,'/tmp'))", "EPERM"},
	{"FS-4 an inherited folder of the host", "refused(*[err(os.listdir,f'/proc/self/fd/{n}/../../..@DIR@') for n in range(256)])", "refused"},
	{"FS-6 overwrite the agent", "refused(err(open,'/proc/1/exe','r+b'), err(open,'/.arenero/guest','r+b'))", "refused"},
	{"FS-7 write to the root", "refused(*[err(open,p+'/x','w') for p in ['/','/usr','/etc','/root','/bin','/proc','/sys','/dev','/.arenero']])", "refused"},
	{"FS-8 remount read-write", "libc.mount.restype=ctypes.c_int\nprint(libc.mount(b'none',b'/',b'',32,None))", "-1"},
	{"FS-14 delete the system", "import shutil\nshutil.rmtree('/usr',ignore_errors=True); shutil.rmtree('/etc',ignore_errors=True)\nprint(os.path.exists('/usr/bin/python3'), os.path.exists('/etc/passwd'))", "True True"},
	{"PROC-1 kernel memory and symbols", "refused(*[err(rd,'/proc/'+p) for p in ['kcore','kallsyms','kmsg','iomem','config.gz','keys','timer_list']])", "refused"},
	{"PROC-2 kernel settings", "refused(*[err(open,'/proc/'+p,'w') for p in ['sysrq-trigger','sys/kernel/core_pattern','sys/kernel/modprobe','sys/vm/panic_on_oom','sys/net/ipv4/ip_forward','sys/kernel/randomize_va_space']])", "refused"},
	{"PROC-3 release_agent", "refused(err(open,'/sys/fs/cgroup/release_agent','w'), err(open,'/sys/kernel/uevent_helper','w'), err(open,'/sys/fs/cgroup/memory.max','w'))", "refused"},
	{"PROC-5 the host's facts", "print(open('/proc/loadavg').read().split()[0], os.path.exists('/sys/class/dmi/id/product_uuid'))", "0.00 False"},
	{"PROC-6 the agent's memory", "refused(*[err(rd,'/proc/1/'+p) for p in ['environ','mem','maps']], err(os.listdir,'/proc/1/fd'), err(os.readlink,'/proc/1/root'), err(os.readlink,'/proc/1/cwd'))", "refused"},
	{"PROC-8 the agent's descriptors", "refused(*[err(open,f'/proc/1/fd/{n}','wb') for n in range(16)])", "refused"},
	{"DEV-1 make device nodes", "refused(*[err(os.mknod,f'/tmp/d{i}',stat.S_IFBLK|0o600,os.makedev(*d)) for i,d in enumerate([(254,0),(8,0)])], *[err(os.mknod,f'/tmp/c{i}',stat.S_IFCHR|0o600,os.makedev(*d)) for i,d in enumerate([(1,1),(1,2),(1,11),(10,232),(10,229)])])", "refused"},
	{"DEV-2 ready devices", "refused(*[err(rd,'/dev/'+p) for p in ['mem','port','kvm','vda','sda','vhost-vsock','snapshot','kmsg']])", "refused"},
	{"DEV-6 vsock", "refused(err(socket.socket,40,socket.SOCK_STREAM))", "refused"},
	{"KRN-2 modules, kexec, reboot, swap, clock", "refused(sysc(175,0,0,b''), sysc(246,0,0,0,0), sysc(169,0xfee1dead,672274793,0x1234567,0), sysc(167,b'/tmp/x',0), sysc(163,b'/tmp/x'), sysc(172,3), sysc(173,0,1,1), sysc(164,0,0) if False else 'EPERM')", "refused"},
	{"KRN-3 bpf, perf, userfaultfd, io_uring, fanotify", "refused(sysc(321,0,0,0), sysc(298,0,0,-1,-1,0), sysc(323,0), sysc(425,8,0), sysc(300,0,0))", "refused"},
	{"KRN-5 odd sockets", "refused(*[err(socket.socket,f,socket.SOCK_RAW if f in (16,) and False else socket.SOCK_DGRAM) for f in (38,21,30,29,31,44,41,43,9,3,42)])", "refused"},
	{"KRN-8 open_by_handle_at", "print(sysc(304,-100,ctypes.create_string_buffer(b'\\x08\\0\\0\\0\\x01\\0\\0\\0'+bytes(8)),0) != 'ok')", "True"},
	{"KRN-10 a sandbox in the sandbox", "refused(err(rd,'/dev/kvm'), err(os.unshare,0x10000000) if hasattr(os,'unshare') else sysc(272,0x10000000))", "refused"},
	{"PRV-1 become root", "print(err(os.setuid,0), err(os.setgid,0), err(os.setgroups,[0]), os.getuid())", "EPERM EPERM EPERM 1000"},
	{"PRV-2 set-uid programs", "print([p for d in ('/bin','/sbin','/usr/bin','/usr/sbin','/usr/lib') for r,_,fs in os.walk(d) for p in fs if os.path.lexists(r+'/'+p) and os.lstat(r+'/'+p).st_mode & 0o6000 and stat.S_ISREG(os.lstat(r+'/'+p).st_mode)])", "[]"},
	{"PRV-3 user namespaces by unshare, clone, clone3", "print(sysc(272,0x10000000), sysc(56,0x10000000|17,0,0,0,0), sysc(435,0,0))", "EPERM EPERM ENOSYS"},
	{"PRV-3 enter a namespace", "print(sysc(308,os.open('/proc/self/ns/net',0) if os.path.exists('/proc/self/ns/net') else 0,0))", "EPERM"},
	{"PRV-4 drop no_new_privs", "print(libc.prctl(38,0,0,0,0), [l.split()[1] for l in open('/proc/self/status') if l.startswith('NoNewPrivs')][0])", "-1 1"},
	{"PRV-5 trace the agent", "refused(sysc(101,16,1,0,0), sysc(101,0x4206,1,0,0))", "refused"},
	{"PRV-6 raise limits", "import resource\nl=resource.getrlimit(resource.RLIMIT_NPROC)\ntry: resource.setrlimit(resource.RLIMIT_NPROC,(l[1]*2,l[1]*2)); print('open')\nexcept (ValueError,OSError): print('refused')", "refused"},
	{"PRV-7 kill the agent", "refused(*[err(os.kill,1,s) for s in (9,19,15,11)])", "refused"},
	{"PRV-7 kill all", "import subprocess\nsubprocess.run(['sh','-c','kill -9 -1'])\nprint('gone')", ""},
	{"PRV capabilities of a process", "print(sorted({l.split()[1] for l in open('/proc/self/status') if l.startswith('Cap')}))", "['0000000000000000']"},
	{"PRV seccomp", "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('Seccomp:')][0])", "2"},
	{"NET-1 no interface but lo", "print([l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l])", "['lo']"},
	{"NET-2 public addresses", "def c(a,f=socket.AF_INET):\n  s=socket.socket(f); s.settimeout(3); s.connect(a)\nrefused(err(c,('1.1.1.1',443)), err(c,('8.8.8.8',53)), err(c,('2606:4700::1111',443),socket.AF_INET6))", "refused"},
	{"NET-3 names", "def n(x):\n  try: socket.getaddrinfo(x,80); return 'ok'\n  except OSError: return 'no'\nrefused(n('example.com'), n('a.very.long.label.of.a.tunnel.example.com'), n('metadata.google.internal'))", "refused"},
	{"NET-5 metadata addresses", "def c(a):\n  s=socket.socket(); s.settimeout(3); s.connect((a,80))\nrefused(*[err(c,a) for a in ('169.254.169.254','169.254.170.2','100.100.100.200','168.63.129.16')])", "refused"},
	{"NET-6 the host", "def c(a):\n  s=socket.socket(); s.settimeout(3); s.connect((a,@PORT@))\nrefused(*[err(c,a) for a in ('127.0.0.1','0.0.0.0','10.0.0.1','172.17.0.1','192.168.0.1')])", "refused"},
	{"NET-8 DNS of others", "def d(a):\n  s=socket.socket(type=socket.SOCK_DGRAM); s.settimeout(1); s.sendto(b'x'*12,(a,53)); s.recv(1)\nrefused(err(d,'8.8.8.8'), err(d,'1.1.1.1'))", "refused"},
	{"NET-9 other forms of addresses", "def c(a):\n  s=socket.socket(socket.AF_INET6); s.settimeout(3); s.connect((a,80))\nrefused(*[err(c,a) for a in ('::ffff:169.254.169.254','64:ff9b::a9fe:a9fe','2002:a9fe:a9fe::1','fe80::1')])", "refused"},
	{"NET-10 raw and packet sockets", "refused(err(socket.socket,socket.AF_INET,socket.SOCK_RAW,1), err(socket.socket,17,socket.SOCK_RAW,768))", "refused"},
	{"NET-11 sockets of the host", "def u(p):\n  s=socket.socket(socket.AF_UNIX); s.connect(p)\nrefused(err(u,'/var/run/docker.sock'), err(u,'/run/containerd/containerd.sock'), err(u,'\\0containerd'), err(u,'/tmp/.X11-unix/X0'))", "refused"},
	{"SEC-1 no secret of ours inside", "t=repr(dict(os.environ))+open('/proc/mounts').read()+open('/proc/self/cgroup').read() if os.path.exists('/proc/self/cgroup') else ''\nprint('arn_' in t, 'ARENERO' in t)", "False False"},
}
