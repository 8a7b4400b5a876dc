package image

// Progress is told how a build or a pull comes along: the step it is at and how
// much of it is done, in units of the step (bytes, packages, stages). A total of
// 0 means that nobody knows. It is called from one goroutine at a time and must
// not block. A nil Progress is fine.
type Progress func(step string, done, total int64)

func (p Progress) step(step string, done, total int64) {
	if p != nil {
		p(step, done, total)
	}
}
