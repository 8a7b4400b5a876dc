package host

import (
	"context"

	"github.com/arenero/arenero"
)

// Warmth says where the warm snapshot of an image lies that the default engine
// can restore here, or why there is none.
func (h *Host) Warmth(ctx context.Context, img arenero.Image) (dir, why string) {
	engine := h.Engines[h.DefaultEngine]
	caps, err := h.caps.of(ctx, engine)
	if err != nil {
		return "", err.Error()
	}
	h.findSnapshot(&img, engine, caps)
	return img.Snapshot, img.ColdWhy
}
