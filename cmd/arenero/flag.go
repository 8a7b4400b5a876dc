package main

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/arenero/arenero"
)

// sizeMapper reads "512M", "1.5GiB" or a number of bytes into an int64. Units
// are powers of 1024, as with docker and systemd.
type sizeMapper struct{}

// Decode implements kong.Mapper.
func (sizeMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("size", &s); err != nil {
		return err
	}
	n, err := parseSize(s)
	if err != nil {
		return err
	}
	target.SetInt(n)
	return nil
}

func parseSize(s string) (int64, error) {
	num := strings.TrimRight(strings.TrimSpace(s), "kKmMgGtTiIbB")
	unit := strings.ToLower(strings.TrimSpace(s)[len(num):])
	scale, ok := map[string]int64{
		"": 1, "b": 1,
		"k": arenero.KiB, "kb": arenero.KiB, "kib": arenero.KiB,
		"m": arenero.MiB, "mb": arenero.MiB, "mib": arenero.MiB,
		"g": arenero.GiB, "gb": arenero.GiB, "gib": arenero.GiB,
		"t": 1024 * arenero.GiB, "tb": 1024 * arenero.GiB, "tib": 1024 * arenero.GiB,
	}[unit]
	f, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
	if !ok || err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%q is not a size: write bytes, or 512M, or 2G", s)
	}
	// Zero would mean the default, which is not what somebody who wrote 0 wants.
	if f *= float64(scale); f < 1 || f > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is not a size that anything can have", s)
	}
	return int64(f), nil
}

// secondsMapper reads "90s", "2m" or a number of seconds into a time.Duration.
type secondsMapper struct{}

// Decode implements kong.Mapper.
func (secondsMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("seconds", &s); err != nil {
		return err
	}
	d, err := parseSeconds(s)
	if err != nil {
		return err
	}
	target.SetInt(int64(d))
	return nil
}

func parseSeconds(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if f, ferr := strconv.ParseFloat(s, 64); ferr == nil && f < math.MaxInt64/float64(time.Second) {
		d, err = time.Duration(f*float64(time.Second)), nil
	}
	if err != nil {
		return 0, fmt.Errorf("%q is not a time: write seconds, or 90s, or 2m", s)
	}
	if d <= 0 {
		return 0, fmt.Errorf("%q is no time at all", s)
	}
	return d, nil
}

// neverMapper reads a time, or "never", which becomes a time below 0; 0 stays for
// "not said".
type neverMapper struct{}

// Decode implements kong.Mapper.
func (neverMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("seconds", &s); err != nil {
		return err
	}
	if s == "never" || s == "0" {
		target.SetInt(-1)
		return nil
	}
	d, err := parseSeconds(s)
	if err != nil {
		return err
	}
	target.SetInt(int64(d))
	return nil
}
