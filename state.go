package arenero

import "slices"

// A State is where a sandbox is in its life.
type State string

// The states of a sandbox.
const (
	Creating    State = "creating"
	Running     State = "running"
	Pausing     State = "pausing"
	Paused      State = "paused" // stopped in memory
	Hibernating State = "hibernating"
	Hibernated  State = "hibernated" // stopped on disk
	Resuming    State = "resuming"
	Killing     State = "killing"
	Killed      State = "killed" // ended because somebody asked, or its time was up
	Failed      State = "failed" // ended by itself, or by a fault
)

// moves is the one table of allowed changes of state.
var moves = map[State][]State{
	Creating:    {Running, Failed, Killing},
	Running:     {Pausing, Hibernating, Resuming, Killing, Failed}, // resuming: rolled back
	Pausing:     {Paused, Running, Killing, Failed},
	Paused:      {Resuming, Hibernating, Killing, Failed},
	Hibernating: {Hibernated, Running, Paused, Killing, Failed},
	Hibernated:  {Resuming, Killing, Failed},
	Resuming:    {Running, Paused, Hibernated, Killing, Failed},
	Killing:     {Killed, Failed},
	Killed:      {},
	Failed:      {Killing},
}

// CanMove reports whether a sandbox may go from one state to another.
func CanMove(from, to State) bool {
	return slices.Contains(moves[from], to)
}

// Ended reports whether a sandbox in this state is gone for good.
func (s State) Ended() bool { return s == Killed || s == Failed }

// States lists every state, in the order of a life.
func States() []State {
	return []State{
		Creating, Running, Pausing, Paused, Hibernating, Hibernated,
		Resuming, Killing, Killed, Failed,
	}
}
