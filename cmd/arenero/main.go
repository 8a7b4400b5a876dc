package main

import "github.com/arenero/arenero/engine/gvisor"

func main() { gvisor.Main() }
