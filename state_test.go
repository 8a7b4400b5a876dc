package arenero_test

import (
	"slices"
	"testing"

	"github.com/arenero/arenero"
)

// TestStateTable holds the table of moves to what a life must look like.
func TestStateTable(t *testing.T) {
	all := arenero.States()
	for _, from := range all {
		if arenero.CanMove(from, from) {
			t.Errorf("%s may move to itself", from)
		}
		if !from.Ended() && from != arenero.Killing && !arenero.CanMove(from, arenero.Killing) {
			t.Errorf("%s cannot be killed", from)
		}
		if !from.Ended() && !arenero.CanMove(from, arenero.Failed) {
			t.Errorf("%s cannot fail", from)
		}
		if arenero.CanMove(from, arenero.Creating) {
			t.Errorf("%s may be created again", from)
		}
		if arenero.CanMove(from, "nonsense") || arenero.CanMove("nonsense", from) {
			t.Errorf("%s moves to or from a state that does not exist", from)
		}
	}
	for _, to := range all {
		if arenero.CanMove(arenero.Killed, to) {
			t.Errorf("a killed sandbox may become %s", to)
		}
	}
	if got := reachable(arenero.Creating); len(got) != len(all) {
		t.Errorf("from creating only %v can be reached of %v", got, all)
	}
}

// TestStateEnds checks that every life can end.
func TestStateEnds(t *testing.T) {
	for _, s := range arenero.States() {
		if !slices.ContainsFunc(reachable(s), arenero.State.Ended) {
			t.Errorf("%s never ends", s)
		}
	}
}

func reachable(from arenero.State) []arenero.State {
	seen := []arenero.State{from}
	for i := 0; i < len(seen); i++ {
		for _, to := range arenero.States() {
			if arenero.CanMove(seen[i], to) && !slices.Contains(seen, to) {
				seen = append(seen, to)
			}
		}
	}
	return seen
}
