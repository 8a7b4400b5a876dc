package host

import (
	"context"

	"github.com/arenero/arenero"
)

// Usage says what a sandbox uses now, measured from outside; one that sleeps on
// disk uses nothing.
func (h *Host) Usage(ctx context.Context, who Who, id string) (arenero.Usage, arenero.Sandbox, error) {
	b, err := h.own(ctx, who, id, ScopeRead, "measure sandbox")
	if err != nil {
		return arenero.Usage{}, arenero.Sandbox{}, err
	}
	sb := b.sandbox()
	y := b.at()
	if y == nil {
		return arenero.Usage{}, sb, nil
	}
	u, err := y.inst.Usage(ctx)
	return u, sb, err
}
