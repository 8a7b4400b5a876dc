package client_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/arenero/arenero/client"
)

// One program, one answer: the sandbox is gone when it comes.
func ExampleClient_Execute() {
	c := client.FromEnv()
	r, err := c.Execute(context.Background(), client.Run{
		Code:    "import csv; print(sum(int(row[1]) for row in csv.reader(open('sales.csv'))))",
		Files:   map[string][]byte{"sales.csv": []byte("lamp,3\ntent,4\n")},
		Timeout: 10 * time.Second,
	})
	if err != nil {
		fmt.Println(err) // the server could not run it
		return
	}
	fmt.Println(r.ExitReason, r.Output)
}

// State is kept between cells until the sandbox is killed.
func ExampleClient_Create() {
	ctx := context.Background()
	sb, err := client.FromEnv().Create(ctx, client.Spec{Lifetime: 10 * time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Kill(ctx)

	python := sb.Kernel("python")
	for _, code := range []string{"x = 6", "x * 7"} {
		r, err := python.Execute(ctx, client.Cell{Code: code})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(r.Output)
	}
}

// What happens in a cell, as it happens.
func ExampleKernel_Stream() {
	ctx := context.Background()
	sb, err := client.FromEnv().Create(ctx, client.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Kill(ctx)
	for e, err := range sb.Kernel("python").Stream(ctx, client.Cell{Code: "for i in range(3): print(i)"}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if e.End != nil {
			fmt.Println("ended:", e.End.Reason)
		}
		fmt.Print(e.Stdout)
	}
}

// Files go in and out; commands run without a shell.
func ExampleSandbox_Exec() {
	ctx := context.Background()
	sb, err := client.FromEnv().Create(ctx, client.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Kill(ctx)
	if err := sb.WriteFile(ctx, "in.txt", 0o644, strings.NewReader("b\na\n")); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := sb.Exec(ctx, client.Command{Argv: []string{"sort", "-o", "out.txt", "in.txt"}}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := sb.Copy(ctx, os.Stdout, client.Command{Argv: []string{"cat", "out.txt"}}); err != nil {
		fmt.Println(err)
		return
	}
}
