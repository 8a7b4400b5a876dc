package image

func (s *Store) removeSnapshots(hex string) error { return removeAll(s.path("snapshots", hex)) }
