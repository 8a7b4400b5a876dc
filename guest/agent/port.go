package agent

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/arenero/arenero"
)

// dialPort connects to a port on the sandbox's loopback, whichever family the
// server listens on.
func dialPort(ctx context.Context, port int32) (*net.TCPConn, error) {
	const op = "dial port"
	if port < 1 || port > 65535 {
		return nil, arenero.Errorf(arenero.Invalid, op, "", "there is no port %d", port)
	}
	var failed error
	for _, host := range []string{"127.0.0.1", "::1"} {
		d := net.Dialer{Timeout: 10 * time.Second}
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err == nil {
			if tcp, ok := c.(*net.TCPConn); ok {
				return tcp, nil
			}
			_ = c.Close()
		}
		if failed == nil {
			failed = err
		}
	}
	return nil, arenero.Errorf(arenero.Unavailable, op, "", "nothing listens on port %d: %w", port, failed).
		WithHint("the program in the sandbox may still be starting")
}
