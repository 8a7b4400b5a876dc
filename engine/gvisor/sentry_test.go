package gvisor_test

import (
	"strconv"
	"strings"
	"testing"
)

// sentryOf finds this process's child that is the kernel of a box.
func sentryOf(t *testing.T, id string) int {
	t.Helper()
	for child := range strings.FieldsSeq(children(t)) {
		n, err := strconv.Atoi(child)
		if err == nil && strings.HasPrefix(proc(t, n, "cmdline"), "runsc-sandbox\x00") && strings.Contains(proc(t, n, "cmdline"), "\x00"+id+"\x00") {
			return n
		}
	}
	t.Fatalf("no sentry of %s", id)
	return 0
}
