package agent_test

const boxStage = "ARENERO_TEST_BOX"

func enterBox(string) {}
