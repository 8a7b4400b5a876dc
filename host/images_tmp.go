package host

import (
	"context"

	"github.com/arenero/arenero"
)

// Images .
type Images interface {
	Get(ctx context.Context, name string) (arenero.Image, error)
	List(ctx context.Context) ([]arenero.Image, error)
	LookupSnapshot(img arenero.Image, key string) (dir, why string)
	PutSnapshot(ctx context.Context, img arenero.Image, key string, fill func(dir string) error) error
}
